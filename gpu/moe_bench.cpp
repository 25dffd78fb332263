#include "gpu/moe_bench.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "gpu/expert_layer.hpp"
#include "gpu/row_buffer.hpp"
#include "gpu/thread_team.hpp"

namespace eldr::gpu {
namespace {

/// Anonymous memory in huge pages where the kernel has them.
class mapped_bytes {
 public:
  explicit mapped_bytes(std::size_t size) : size_(size) {
    data_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) {
      throw std::runtime_error(
          fmt::format("{} bytes for the weights are not to be had; choose a smaller layer.", size));
    }
    ::madvise(data_, size, MADV_HUGEPAGE);
  }
  ~mapped_bytes() { ::munmap(data_, size_); }
  mapped_bytes(const mapped_bytes&) = delete;
  mapped_bytes& operator=(const mapped_bytes&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return size_; }

 private:
  void* data_;
  std::size_t size_;
};

void check(const moe_bench_options& o) {
  if (o.hidden == 0 || o.expert_width == 0 || o.tokens == 0 || o.repeats == 0 || o.threads == 0) {
    throw std::runtime_error("The MoE benchmark needs sizes, tokens, threads and repeats above 0.");
  }
  if (o.experts == 0 || o.experts > 65536 || o.union_experts > o.experts ||
      o.experts_per_token == 0 || o.union_experts < o.experts_per_token ||
      o.union_experts > std::uint64_t{o.tokens} * o.experts_per_token) {
    throw std::runtime_error(fmt::format(
        "{} tokens of {} experts each cannot use {} distinct experts of {}; choose a union between "
        "the experts per token and tokens times that, and at most all experts.",
        o.tokens, o.experts_per_token, o.union_experts, o.experts));
  }
}

/// Layers of random weights, visited in turn.
class cold_weights {
 public:
  explicit cold_weights(const moe_bench_options& o)
      : matrix_bytes_(std::size_t{o.hidden} * o.expert_width * bytes_of(o.dtype)),
        layer_bytes_(3 * matrix_bytes_ * o.experts),
        layers_(std::max<std::size_t>(1, (o.weight_bytes_min + layer_bytes_ - 1) / layer_bytes_)),
        memory_(layers_ * layer_bytes_) {
    fill(o.dtype);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      views_.emplace_back();
      for (std::uint32_t e = 0; e < o.experts; ++e) {
        const std::byte* at = memory_.data() + layer * layer_bytes_ + 3 * e * matrix_bytes_;
        views_.back().push_back(
            {.gate = {o.dtype, at, o.expert_width, o.hidden},
             .up = {o.dtype, at + matrix_bytes_, o.expert_width, o.hidden},
             .down = {o.dtype, at + 2 * matrix_bytes_, o.hidden, o.expert_width}});
      }
    }
  }

  std::size_t expert_bytes() const { return 3 * matrix_bytes_; }
  std::span<const expert_weights> layer(std::size_t i) const { return views_[i % layers_]; }

 private:
  /// Values of about +-0.03 with every bit of the mantissa in use.
  void fill(weight_dtype dtype) {
    const std::size_t size = bytes_of(dtype);
    std::uint64_t x = 1;
    for (std::size_t at = 0; at < memory_.size(); at += size) {
      x = x * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX generator.
      const auto noise = static_cast<std::uint32_t>(x >> 32);
      const std::uint32_t f32 = (noise & 0x807fffffU) | 0x3c800000U;
      const std::uint32_t bits = dtype == weight_dtype::f32    ? f32
                                 : dtype == weight_dtype::bf16 ? f32 >> 16
                                                               : (noise >> 16 & 0x83ffU) | 0x2400U;
      std::memcpy(memory_.data() + at, &bits, size);
    }
  }

  std::size_t matrix_bytes_;
  std::size_t layer_bytes_;
  std::size_t layers_;
  mapped_bytes memory_;
  std::vector<std::vector<expert_weights>> views_;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// One thread is measured by its own processor time: that equals wall time on an idle machine, and
/// does not count the turns of others on a busy one. Several threads need wall time.
double now_s(std::uint32_t threads) {
  timespec t{};
  ::clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class F>
double seconds(std::uint32_t threads, F f) {
  const double begin = now_s(threads);
  f();
  return now_s(threads) - begin;
}

/// One benchmark: weights, activations, and the alternation of steps and reads.
class moe_bench {
 public:
  explicit moe_bench(const moe_bench_options& o)
      : options_(o),
        k_(select_kernels(o.instructions)),
        weights_(o),
        team_(o.threads),
        layer_(k_, team_, o.hidden, o.expert_width),
        in_(o.hidden),
        hidden_(o.hidden),
        order_(o.experts),
        choices_(std::size_t{o.tokens} * o.experts_per_token),
        gate_weights_(choices_.size(), 1.0F / static_cast<float>(o.experts_per_token)) {
    in_.reserve(o.tokens);
    hidden_.reserve(o.tokens);
    std::normal_distribution<float> normal;
    for (std::uint32_t t = 0; t < o.tokens; ++t) {
      std::generate_n(in_.row(t), o.hidden, [&] { return normal(rng_); });
    }
    std::iota(order_.begin(), order_.end(), std::uint16_t{0});
  }

  moe_bench_result run() {
    std::vector<double> steps;
    std::vector<double> reads;
    // One unmeasured round faults in pages and buffers.
    for (std::uint32_t i = 0; i <= options_.repeats; ++i) {
      const std::span<const expert_weights> experts = weights_.layer(i);
      choose();
      const double step = seconds(options_.threads, [&] {
        layer_.run(experts, in_.from(), hidden_.from(), choices_, gate_weights_,
                   options_.experts_per_token);
      });
      choose();
      const double read = seconds(options_.threads, [&] { read_union(experts); });
      if (i > 0) {
        steps.push_back(step);
        reads.push_back(read);
      }
    }
    return {.step_s = median(steps),
            .step_min_s = *std::min_element(steps.begin(), steps.end()),
            .read_s = median(reads),
            .read_min_s = *std::min_element(reads.begin(), reads.end()),
            .union_bytes = options_.union_experts * std::uint64_t{weights_.expert_bytes()}};
  }

 private:
  /// A fresh union of experts, dealt to the tokens in turn, so that a token's are distinct.
  void choose() {
    std::shuffle(order_.begin(), order_.end(), rng_);
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      choices_[i] = order_[i % options_.union_experts];
    }
  }

  /// Reads the weights of the union and does nothing with them.
  void read_union(std::span<const expert_weights> experts) {
    team_.run([&](std::uint32_t rank) {
      const std::size_t bytes = weights_.expert_bytes();
      const std::size_t begin = bytes * rank / team_.size() / 64 * 64;
      const std::size_t end = bytes * (rank + 1) / team_.size() / 64 * 64;
      std::uint64_t checksum = 0;
      for (std::uint32_t u = 0; u < options_.union_experts; ++u) {
        checksum ^= k_.stream_read(experts[order_[u]].gate.data + begin, end - begin);
      }
      checksums_.fetch_xor(checksum, std::memory_order_relaxed);
    });
  }

  const moe_bench_options options_;
  const kernels& k_;
  cold_weights weights_;
  thread_team team_;
  expert_layer layer_;
  row_buffer in_;
  row_buffer hidden_;
  std::mt19937 rng_{1};
  std::vector<std::uint16_t> order_;
  std::vector<std::uint16_t> choices_;
  std::vector<float> gate_weights_;
  std::atomic<std::uint64_t> checksums_ = 0;  ///< Keeps the reads from being optimised away.
};

}  // namespace

moe_bench_result run_moe_bench(const moe_bench_options& options) {
  check(options);
  return moe_bench(options).run();
}

}  // namespace eldr::gpu
