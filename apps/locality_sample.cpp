#include "apps/locality_sample.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <span>

namespace eldr::apps {

namespace {

/// Counts distinct experts per layer over some rows.
class union_counter {
 public:
  union_counter(std::uint32_t layers, std::uint32_t experts, std::uint32_t k)
      : layers_(layers), experts_(experts), k_(k), mark_(std::size_t{layers} * experts) {}

  void begin() {
    ++round_;
    distinct_ = 0;
  }
  void add(const std::uint16_t* row) {
    for (std::uint32_t i = 0; i < layers_ * k_; ++i) {
      auto& mark = mark_[std::size_t{i / k_} * experts_ + row[i]];
      distinct_ += mark != round_ ? 1 : 0;
      mark = round_;
    }
  }
  double per_layer() const { return static_cast<double>(distinct_) / layers_; }

 private:
  std::uint32_t layers_;
  std::uint32_t experts_;
  std::uint32_t k_;
  std::vector<std::uint64_t> mark_;
  std::uint64_t round_ = 0;
  std::uint64_t distinct_ = 0;
};

}  // namespace

sampled_batches sample_batches(const std::vector<observed_request>& requests, std::uint32_t layers,
                               std::uint32_t experts, std::uint32_t experts_per_token,
                               std::size_t workers, double interval_s, std::size_t draws,
                               std::uint64_t seed) {
  const auto row_cells = std::size_t{layers} * experts_per_token;
  double begin = 1e300;
  double end = 0;
  for (const auto& r : requests) {
    if (r.token_s.size() > 1) {
      begin = std::min(begin, r.token_s[1]);
      end = std::max(end, r.token_s.back());
    }
  }
  // Ramp-up and run-out are not the load that is meant.
  const double margin = (end - begin) * 0.15;
  std::mt19937_64 rng(seed);
  union_counter count(layers, experts, experts_per_token);
  sampled_batches out;
  double weight = 0;
  for (double t = begin + margin; t < end - margin; t += interval_s) {
    std::vector<const std::uint16_t*> rows;
    std::map<std::string, std::vector<const std::uint16_t*>> by_node;
    for (const auto& r : requests) {
      if (r.token_s.size() < 2 || t < r.token_s.front() || t >= r.token_s.back()) {
        continue;
      }
      // The token that is being fed now: the last one that has come.
      const auto come = static_cast<std::size_t>(
          std::upper_bound(r.token_s.begin(), r.token_s.end(), t) - r.token_s.begin());
      const auto row = r.prompt_tokens + come - 1;
      if ((row + 1) * row_cells <= r.choices.size()) {
        rows.push_back(r.choices.data() + row * row_cells);
        by_node[r.decode_node].push_back(rows.back());
      }
    }
    if (rows.empty()) {
      continue;
    }
    std::size_t most = 0;
    for (const auto& [node, batch] : by_node) {
      most = std::max(most, batch.size());
      const auto n = static_cast<double>(batch.size());
      count.begin();
      for (const auto* row : batch) {
        count.add(row);
      }
      out.distinct += n * count.per_layer();
      for (std::size_t d = 0; d < draws; ++d) {
        count.begin();
        for (std::size_t i = 0; i < batch.size(); ++i) {
          // A partial shuffle: the first batch.size() rows are a draw without replacement.
          std::swap(rows[i], rows[i + rng() % (rows.size() - i)]);
          count.add(rows[i]);
        }
        out.random_distinct += n * count.per_layer() / static_cast<double>(draws);
      }
      weight += n;
    }
    out.spread +=
        static_cast<double>(most) * static_cast<double>(workers) / static_cast<double>(rows.size());
    ++out.samples;
  }
  if (out.samples > 0) {
    out.distinct /= weight;
    out.random_distinct /= weight;
    out.spread /= static_cast<double>(out.samples);
  }
  return out;
}

}  // namespace eldr::apps
