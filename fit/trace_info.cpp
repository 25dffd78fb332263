#include "fit/trace_info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "fit/random.hpp"

namespace eldr::fit {
namespace {

constexpr std::size_t requests_at_once = 1024;  // Bounds the memory of counts.
constexpr int batches_per_kind = 400;

std::optional<double> pearson(std::span<const std::uint16_t> x, std::span<const std::uint16_t> y) {
  double sx = 0, sy = 0, sxx = 0, syy = 0, sxy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sx += x[i];
    sy += y[i];
    sxx += double{1} * x[i] * x[i];
    syy += double{1} * y[i] * y[i];
    sxy += double{1} * x[i] * y[i];
  }
  const auto n = static_cast<double>(x.size());
  const double variances = (sxx - sx * sx / n) * (syy - sy * sy / n);
  if (!(variances > 0)) {
    return std::nullopt;
  }
  return (sxy - sx * sy / n) / std::sqrt(variances);
}

double entropy_bits(std::span<const double> uses) {
  double total = 0;
  for (const double use : uses) {
    total += use;
  }
  double bits = 0;
  for (const double use : uses) {
    bits -= use > 0 ? use / total * std::log2(use / total) : 0;
  }
  return bits;
}

/// Draws decode batches and counts the experts that they touch.
class batch_sampler {
 public:
  batch_sampler(const trace& source, std::uint32_t experts, std::uint32_t batch, std::uint64_t seed)
      : source_(source),
        batch_(batch),
        random_(seed),
        seen_(std::size_t{source.layers()} * experts, 0),
        experts_(experts),
        row_(std::size_t{source.layers()} * source.experts_per_token()) {
    for (const trace_request& request : source.requests()) {
      if (request.rows > request.prefill_rows) {
        all_.push_back(&request);
        by_label_[request.label].push_back(&request);
      }
    }
    std::erase_if(by_label_, [this](const auto& entry) { return entry.second.size() < batch_; });
  }

  std::optional<batch_union> sample() {
    if (batch_ == 0 || all_.size() < batch_ || by_label_.empty()) {
      return std::nullopt;
    }
    batch_union result{.batch = batch_};
    auto label = by_label_.begin();
    for (int i = 0; i < batches_per_kind; ++i) {
      result.same_label += distinct_experts(label->second);
      result.mixed += distinct_experts(all_);
      label = std::next(label) == by_label_.end() ? by_label_.begin() : std::next(label);
    }
    result.same_label /= batches_per_kind;
    result.mixed /= batches_per_kind;
    return result;
  }

 private:
  /// Mean over layers, for a batch of distinct requests, each at a random decode step.
  double distinct_experts(std::vector<const trace_request*>& pool) {
    ++stamp_;
    std::size_t distinct = 0;
    for (std::size_t i = 0; i < batch_; ++i) {
      std::swap(pool[i], pool[i + random_.below(pool.size() - i)]);
      const trace_request& request = *pool[i];
      const std::uint64_t step = random_.below(request.rows - request.prefill_rows);
      source_.read_row(request.first_row + request.prefill_rows + step, row_);
      for (std::size_t j = 0; j < row_.size(); ++j) {
        std::uint64_t& seen = seen_[j / source_.experts_per_token() * experts_ + row_[j]];
        distinct += seen != stamp_;
        seen = stamp_;
      }
    }
    return static_cast<double>(distinct) / source_.layers();
  }

  const trace& source_;
  std::uint32_t batch_;
  random_source random_;
  std::vector<std::uint64_t> seen_;  // [layers][experts], the stamp of the last batch to touch it
  std::uint64_t stamp_ = 0;
  std::uint32_t experts_;
  std::vector<std::uint16_t> row_;
  std::vector<const trace_request*> all_;
  std::map<std::string, std::vector<const trace_request*>> by_label_;
};

}  // namespace

trace_summary summarise_trace(const trace& source, std::uint32_t experts, std::uint32_t batch,
                              std::uint64_t seed, unsigned threads) {
  trace_summary summary;
  summary.layers = source.layers();
  summary.experts = experts;
  summary.experts_per_token = source.experts_per_token();
  summary.requests = source.requests().size();
  std::vector<double> uses(std::size_t{source.layers()} * experts, 0);
  double correlations = 0;
  std::size_t correlated = 0;
  for (std::uint32_t first = 0; first < source.requests().size(); first += requests_at_once) {
    std::vector<std::uint32_t> which;
    for (std::uint32_t i = first;
         i < std::min<std::size_t>(first + requests_at_once, source.requests().size()); ++i) {
      which.push_back(i);
    }
    const trace_counts counts = count_trace(source, experts, which, threads);
    for (std::size_t i = 0; i < which.size(); ++i) {
      const auto prefill = counts.prefill_of(i);
      const auto decode = counts.decode_of(i);
      for (std::size_t cell = 0; cell < uses.size(); ++cell) {
        uses[cell] += prefill[cell] + decode[cell];
      }
      if (const auto correlation = pearson(prefill, decode)) {
        correlations += *correlation;
        ++correlated;
      }
      summary.prefill_tokens += counts.prefill_tokens[i];
      summary.decode_tokens += counts.decode_tokens[i];
    }
  }
  for (std::size_t layer = 0; layer < source.layers(); ++layer) {
    summary.entropy.push_back(entropy_bits(std::span(uses).subspan(layer * experts, experts)));
  }
  if (correlated > 0) {
    summary.correlation = correlations / static_cast<double>(correlated);
  }
  std::map<std::string, std::uint32_t> labels;
  for (const trace_request& request : source.requests()) {
    ++labels[request.label];
  }
  summary.labels.assign(labels.begin(), labels.end());
  summary.unions = batch_sampler(source, experts, batch, seed).sample();
  return summary;
}

std::string summary_text(const trace_summary& summary) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{} layers, {} experts, top-{}\n", summary.layers, summary.experts,
                 summary.experts_per_token);
  fmt::format_to(out, "{} requests, {} prefill and {} decode tokens\n", summary.requests,
                 summary.prefill_tokens, summary.decode_tokens);
  fmt::format_to(out, "labels:");
  for (const auto& [label, requests] : summary.labels) {
    fmt::format_to(out, " {} {}", label.empty() ? "(none)" : label, requests);
  }
  fmt::format_to(out,
                 "\nusage entropy per layer, bits (at most {:.2f}):", std::log2(summary.experts));
  for (const double bits : summary.entropy) {
    fmt::format_to(out, " {:.2f}", bits);
  }
  fmt::format_to(out, "\n");
  if (summary.correlation) {
    fmt::format_to(out, "prefill-decode correlation, mean over requests: {:.3f}\n",
                   *summary.correlation);
  }
  if (summary.unions) {
    const batch_union& unions = *summary.unions;
    fmt::format_to(out,
                   "distinct experts per layer and step in batches of {}: same label {:.2f}, mixed "
                   "{:.2f} ({:+.1f} %)\n",
                   unions.batch, unions.same_label, unions.mixed,
                   100 * (unions.same_label / unions.mixed - 1));
  }
  return text;
}

}  // namespace eldr::fit
