/// `eldr bench moe`: the expert layer of a decode step against the machine's read bandwidth.

#include <fmt/format.h>

#include <memory>
#include <stdexcept>

#include "apps/bench_commands.hpp"
#include "apps/bench_report.hpp"
#include "gpu/moe_bench.hpp"

namespace eldr::apps {
namespace {

struct moe_options : bench_options {
  std::vector<std::uint32_t> shape{2048, 768, 128, 8};
  std::vector<gpu::weight_dtype> dtypes{gpu::weight_dtype::bf16, gpu::weight_dtype::f32};
  std::vector<std::uint32_t> batches{1, 4, 8, 16};
  std::vector<std::uint32_t> unions;  ///< Empty: for each batch, what 1, 2 and 4 tokens share.
  std::uint32_t threads = 1;
  std::uint32_t repeats = 15;
};

const std::map<std::string, gpu::weight_dtype> dtype_names{{"f32", gpu::weight_dtype::f32},
                                                           {"f16", gpu::weight_dtype::f16},
                                                           {"bf16", gpu::weight_dtype::bf16}};

std::string name_of(gpu::weight_dtype dtype) {
  for (const auto& [name, value] : dtype_names) {
    if (value == dtype) {
      return name;
    }
  }
  return "?";
}

/// Unions to measure with a batch: so that each expert has 1, 2 or 4 tokens on average.
std::vector<std::uint32_t> unions_for(const moe_options& o, std::uint32_t batch) {
  if (!o.unions.empty()) {
    return o.unions;
  }
  const std::uint32_t experts = o.shape[2];
  const std::uint32_t k = o.shape[3];
  std::vector<std::uint32_t> unions;
  for (const std::uint32_t tokens_per_expert : {1u, 2u, 4u}) {
    const std::uint32_t distinct = batch * k / tokens_per_expert;
    if (distinct >= k && distinct <= experts) {
      unions.push_back(distinct);
    }
  }
  return unions;
}

void measure(const moe_options& o, gpu::weight_dtype dtype, std::uint32_t batch,
             std::uint32_t distinct, bench_report& report) {
  show_progress(fmt::format("{}, batch {}, {} experts ...", name_of(dtype), batch, distinct));
  gpu::moe_bench_options options;
  options.hidden = o.shape[0];
  options.expert_width = o.shape[1];
  options.experts = o.shape[2];
  options.experts_per_token = o.shape[3];
  options.tokens = batch;
  options.union_experts = distinct;
  options.dtype = dtype;
  options.threads = o.threads;
  options.repeats = o.repeats;
  if (o.quick) {
    options.weight_bytes_min = 1u << 24;
  }
  const auto result = gpu::run_moe_bench(options);
  const double tokens_per_expert = static_cast<double>(batch * o.shape[3]) / distinct;
  const bool has_aim = dtype == gpu::weight_dtype::bf16 && tokens_per_expert <= 2;
  report.add({name_of(dtype), static_cast<double>(batch), static_cast<double>(distinct),
              tokens_per_expert, static_cast<double>(result.union_bytes) / (1 << 20),
              result.step_s * 1e3, result.read_s * 1e3, result.read_bandwidth() / 1e9,
              result.of_read_bandwidth(), std::string(has_aim ? ">= 0.8" : "")});
}

int run(moe_options o) {
  if (o.quick) {
    o.shape = {256, 64, 16, 4};
    o.batches = {4};
    o.unions = {8};
    o.repeats = 3;
  }
  bench_report report("moe", o,
                      {{"dtype", "dtype"},
                       {"batch", "batch", 0},
                       {"experts", "experts", 0},
                       {"tokens_per_expert", "tokens/expert", 1},
                       {"union_mib", "MiB", 1},
                       {"step_ms", "step ms", 3},
                       {"read_ms", "read ms", 3},
                       {"read_gb_per_s", "read GB/s", 2},
                       {"of_read_bandwidth", "of read", 2},
                       {"aim", "aim"}});
  for (const auto dtype : o.dtypes) {
    for (const auto batch : o.batches) {
      for (const auto distinct : unions_for(o, batch)) {
        measure(o, dtype, batch, distinct, report);
      }
    }
  }
  report.note(fmt::format(
      "d_model {}, d_ff {}, {} experts, top-{}, {} thread(s), weights cold; medians of {} steps, "
      "each followed by a plain read of as many cold weight bytes by the same threads.",
      o.shape[0], o.shape[1], o.shape[2], o.shape[3], o.threads, o.repeats));
  report.print();
  return 0;
}

}  // namespace

void add_bench_moe(CLI::App& bench, command& chosen) {
  auto o = std::make_shared<moe_options>();
  CLI::App* app = bench.add_subcommand(
      "moe", "The expert layer of a decode step against the machine's read bandwidth");
  add_bench_options(*app, *o);
  app->add_option("--shape", o->shape, "d_model,d_ff,experts,experts per token")
      ->delimiter(',')
      ->expected(4)
      ->capture_default_str();
  app->add_option("--dtype", o->dtypes, "Of the weights; several with commas")
      ->delimiter(',')
      ->transform(CLI::CheckedTransformer(dtype_names))
      ->default_str("bf16,f32");
  app->add_option("--batch", o->batches, "Sequences of the step; several with commas")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--experts", o->unions,
                  "Distinct experts of the step; several with commas; so that each has 1, 2 and 4 "
                  "tokens if not given")
      ->delimiter(',');
  app->add_option("--threads", o->threads, "Threads of the layer")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app->add_option("--repeats", o->repeats, "Steps of each measurement")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->callback([o, &chosen] { chosen = [o] { return run(*o); }; });
}

}  // namespace eldr::apps
