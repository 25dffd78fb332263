#pragma once
/// The subcommands of `eldr`, one file each.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>

namespace eldr::apps {

/// What the command line asks for; returns the exit code. Faults are exceptions derived from
/// std::exception whose text is one sentence for people.
using command = std::function<int()>;

// Each adds its subcommand to `app`; when the command line names it, `chosen` is set.
void add_up(CLI::App& app, command& chosen);
void add_manifest(CLI::App& app, command& chosen);
void add_node(CLI::App& app, command& chosen);
void add_generate(CLI::App& app, command& chosen);
void add_status(CLI::App& app, command& chosen);
void add_down(CLI::App& app, command& chosen);
void add_policy(CLI::App& app, command& chosen);
/// A subcommand of `eldr trace`.
void add_trace_record(CLI::App& trace, command& chosen);
void add_explain(CLI::App& app, command& chosen);
void add_bench(CLI::App& app, command& chosen);
void add_fit(CLI::App& app, command& chosen);
void add_trace(CLI::App& app, command& chosen);
void add_artifact(CLI::App& app, command& chosen);

/// `--manifest FILE`, for commands that attach to a running cluster: $ELDR_MANIFEST if not given,
/// else cluster.yaml.
CLI::Option* add_manifest_option(CLI::App& app, std::filesystem::path& file);

}  // namespace eldr::apps
