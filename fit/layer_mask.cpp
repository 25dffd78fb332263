#include "fit/layer_mask.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "fit/parallel.hpp"

namespace eldr::fit {
namespace {

/// Below every rho, so that a layer under which it is undefined comes last.
constexpr double undefined_rho = -2;

struct candidate_scratch {
  std::vector<float> dots, norms, inverse_norms, distances;
  rank_correlator::scratch ranks;
};

/// rho of the layers chosen so far (their sums) with one more.
double try_layer(const pair_similarities& signatures, const rank_correlator& decode,
                 const std::vector<float>& dot_sums, const std::vector<float>& norm_sums,
                 std::uint32_t layer, candidate_scratch& memory) {
  memory.dots.resize(dot_sums.size());
  memory.distances.resize(dot_sums.size());
  memory.norms.resize(norm_sums.size());
  memory.inverse_norms.resize(norm_sums.size());
  std::ranges::transform(dot_sums, signatures.dots(layer), memory.dots.begin(), std::plus<>());
  std::ranges::transform(norm_sums, signatures.norms(layer), memory.norms.begin(), std::plus<>());
  cosine_distances(signatures.pairs(), memory.dots, memory.norms, memory.inverse_norms,
                   memory.distances);
  return decode.correlate(memory.distances, memory.ranks).value_or(undefined_rho);
}

}  // namespace

std::vector<mask_step> search_layer_mask(const pair_similarities& signatures,
                                         const rank_correlator& decode, unsigned threads) {
  std::vector<std::uint32_t> open(signatures.layers());
  std::iota(open.begin(), open.end(), 0u);
  std::vector<float> dot_sums(signatures.pairs().size(), 0);
  std::vector<float> norm_sums(signatures.requests(), 0);
  std::vector<double> rhos(open.size());
  std::vector<candidate_scratch> memory(thread_count(threads));
  std::vector<mask_step> curve;
  while (!open.empty()) {
    // One task a thread, each with every n-th candidate, so that scratch memory is its own.
    parallel_for(memory.size(), threads, [&](std::size_t worker) {
      for (std::size_t i = worker; i < open.size(); i += memory.size()) {
        rhos[i] = try_layer(signatures, decode, dot_sums, norm_sums, open[i], memory[worker]);
      }
    });
    const auto best = std::max_element(rhos.begin(), rhos.begin() + std::ssize(open));
    const auto chosen = open.begin() + (best - rhos.begin());
    curve.push_back({*chosen, *best == undefined_rho ? 0 : *best});
    std::ranges::transform(dot_sums, signatures.dots(*chosen), dot_sums.begin(), std::plus<>());
    std::ranges::transform(norm_sums, signatures.norms(*chosen), norm_sums.begin(), std::plus<>());
    open.erase(chosen);
  }
  return curve;
}

std::vector<std::uint32_t> best_prefix(const std::vector<mask_step>& curve) {
  const auto best = std::ranges::max_element(curve, {}, &mask_step::rho);
  std::vector<std::uint32_t> layers;
  for (auto step = curve.begin(); step != curve.end() && step <= best; ++step) {
    layers.push_back(step->layer);
  }
  std::ranges::sort(layers);
  return layers;
}

}  // namespace eldr::fit
