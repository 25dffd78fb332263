/// `eldr bench`: measures what the cluster is made of, each part against a floor of the same run.

#include "apps/bench_commands.hpp"
#include "apps/bench_peer.hpp"
#include "apps/commands.hpp"

namespace eldr::apps {

void add_bench(CLI::App& app, command& chosen) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure a part of the system against a floor of the same run");
  bench->require_subcommand(1);
  add_bench_actors(*bench, chosen);
  add_bench_pull(*bench, chosen);
  add_bench_moe(*bench, chosen);
  add_bench_router(*bench, chosen);
  add_bench_serve(*bench, chosen);
  add_bench_idle(*bench, chosen);
  add_bench_locality(*bench, chosen);
  add_bench_peer(*bench, chosen);
}

}  // namespace eldr::apps
