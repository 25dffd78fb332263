#pragma once
/// What a client can tell of the batches that its requests were decoded in: from the experts that
/// their tokens chose and the moments at which the tokens came.

#include <cstdint>
#include <string>
#include <vector>

namespace eldr::apps {

/// One answered request, as the client saw it.
struct observed_request {
  std::string decode_node;
  std::size_t prompt_tokens = 0;
  std::vector<std::uint16_t> choices;  ///< [prompt and generated tokens that were run][layers][k]
  std::vector<double> token_s;         ///< When each generated token came; the first is prefill's.
};

struct sampled_batches {
  double distinct = 0;  ///< Experts per layer of a worker's requests, weighted by their number.
  double random_distinct = 0;  ///< The same for random draws of as many of all requests in flight.
  double spread = 0;           ///< Mean over time of max / mean requests in flight per worker.
  std::size_t samples = 0;
};

/// Looks at the requests in flight every `interval_s`; `workers`: decode workers that could have
/// some. `draws` random batches per worker and moment, from `seed`.
sampled_batches sample_batches(const std::vector<observed_request>&, std::uint32_t layers,
                               std::uint32_t experts, std::uint32_t experts_per_token,
                               std::size_t workers, double interval_s, std::size_t draws,
                               std::uint64_t seed);

}  // namespace eldr::apps
