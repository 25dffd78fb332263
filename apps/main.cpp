/// The `eldr` command.

#include <signal.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "apps/commands.hpp"
#include "apps/standard_streams.hpp"
#include "apps/version.hpp"
#include "cluster/nearest.hpp"

namespace eldr::apps {
namespace {

constexpr int usage_error = 2;

int complain(const std::exception& e) {
  std::cerr << "eldr: " << e.what() << std::endl;
  return 1;
}

/// CLI11 would only say that a subcommand is missing.
void check_name(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : app.get_subcommands({})) {
    names.push_back(subcommand->get_name());
  }
  if (word.starts_with('-') || std::ranges::find(names, word) != names.end()) {
    return;
  }
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const auto guess = cluster::nearest(word, candidates);
  throw CLI::ExtrasError(cluster::in_quotes(word) + " is not a command" +
                             (guess ? "; did you mean '" + std::string(*guess) + "'?" : ""),
                         CLI::ExitCodes::ExtrasError);
}

int run(int argc, char** argv) {
  CLI::App app(
      "ELDR serves Mixture-of-Experts language models on a cluster of prefill and decode "
      "workers.",
      "eldr");
  app.set_version_flag("--version", [] { return version_text(); });
  app.require_subcommand(1);
  command chosen;
  add_up(app, chosen);
  add_node(app, chosen);
  add_generate(app, chosen);
  add_status(app, chosen);
  add_down(app, chosen);
  add_policy(app, chosen);
  add_explain(app, chosen);
  add_manifest(app, chosen);
  add_bench(app, chosen);
  add_trace(app, chosen);
  add_fit(app, chosen);
  add_artifact(app, chosen);
  try {
    if (argc > 1) {
      check_name(app, argv[1]);
    }
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : usage_error;
  }
  return chosen();
}

}  // namespace
}  // namespace eldr::apps

int main(int argc, char** argv) {
  using namespace eldr::apps;
  signal(SIGPIPE, SIG_IGN);  // A reader that goes away is an error of write(), not the end.
  open_standard_streams();
  int code = 1;
  try {
    code = run(argc, argv);
  } catch (const std::exception& e) {
    code = complain(e);
  }
  try {
    finish_standard_output();
  } catch (const std::exception& e) {
    code = complain(e);
  }
  return code;
}
