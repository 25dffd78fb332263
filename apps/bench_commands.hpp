#pragma once
/// The benchmarks of `eldr bench`, one file each.

#include "apps/commands.hpp"

namespace eldr::apps {

// Each adds its subcommand to `bench`; when the command line names it, `chosen` is set.
void add_bench_actors(CLI::App& bench, command& chosen);
void add_bench_pull(CLI::App& bench, command& chosen);
void add_bench_moe(CLI::App& bench, command& chosen);
void add_bench_router(CLI::App& bench, command& chosen);
void add_bench_serve(CLI::App& bench, command& chosen);
void add_bench_idle(CLI::App& bench, command& chosen);
void add_bench_locality(CLI::App& bench, command& chosen);

}  // namespace eldr::apps
