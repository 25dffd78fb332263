#pragma once
/// Synthetic traces and counts for the tests of fit/.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fit/counts.hpp"
#include "fit/random.hpp"

namespace eldr::fit::testing {

struct synthetic_shape {
  std::uint32_t requests = 60;
  std::uint32_t layers = 3;
  std::uint32_t experts = 16;
  std::uint32_t experts_per_token = 2;
  std::uint32_t domains = 4;
  std::uint32_t prefill_tokens = 20;
  std::uint32_t decode_tokens = 20;
  std::uint64_t seed = 7;
};

/// Draws the k distinct experts of a token. A domain prefers a quarter of the experts, a different
/// one in every layer.
class domain_router {
 public:
  explicit domain_router(const synthetic_shape& shape)
      : shape_(shape), random_(shape.seed), preferred_(shape.layers) {
    for (auto& layer : preferred_) {
      for (std::uint32_t d = 0; d < shape.domains; ++d) {
        layer.push_back(static_cast<std::uint32_t>(random_.below(shape.experts)));
      }
    }
  }

  std::vector<std::uint16_t> token(std::uint32_t domain) {
    std::vector<std::uint16_t> ids;
    for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
      const std::size_t first = ids.size();
      while (ids.size() < first + shape_.experts_per_token) {
        const bool own = random_.unit() < 0.8;
        const std::uint64_t offset = random_.below(own ? shape_.experts / 4 : shape_.experts);
        const auto id =
            static_cast<std::uint16_t>((preferred_[layer][domain] + offset) % shape_.experts);
        if (std::find(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), id) ==
            ids.end()) {
          ids.push_back(id);
        }
      }
    }
    return ids;
  }

  std::vector<std::uint16_t> tokens(std::uint32_t domain, std::uint32_t count) {
    std::vector<std::uint16_t> ids;
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto one = token(domain);
      ids.insert(ids.end(), one.begin(), one.end());
    }
    return ids;
  }

 private:
  synthetic_shape shape_;
  random_source random_;
  std::vector<std::vector<std::uint32_t>> preferred_;
};

/// Counts of requests whose domain is their index modulo the number of domains.
inline trace_counts synthetic_counts(const synthetic_shape& shape) {
  trace_counts counts;
  counts.requests = shape.requests;
  counts.layers = shape.layers;
  counts.experts = shape.experts;
  counts.experts_per_token = shape.experts_per_token;
  counts.prefill.resize(shape.requests * counts.cells());
  counts.decode.resize(counts.prefill.size());
  domain_router router(shape);
  for (std::uint32_t r = 0; r < shape.requests; ++r) {
    const std::uint32_t domain = r % shape.domains;
    const auto add = [&](std::uint32_t tokens, std::vector<std::uint16_t>& cells) {
      const auto ids = router.tokens(domain, tokens);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::size_t layer = i / shape.experts_per_token % shape.layers;
        ++cells[r * counts.cells() + layer * shape.experts + ids[i]];
      }
    };
    add(shape.prefill_tokens, counts.prefill);
    add(shape.decode_tokens, counts.decode);
    counts.prefill_tokens.push_back(shape.prefill_tokens);
    counts.decode_tokens.push_back(shape.decode_tokens);
    counts.labels.push_back("domain-" + std::to_string(domain));
  }
  return counts;
}

/// A folder of its own for a test, removed at the end.
class temporary_folder {
 public:
  temporary_folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "eldr-fit-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// Writes a trace of the shape into `folder`, with domain labels.
inline void write_synthetic_trace(const std::filesystem::path& folder,
                                  const synthetic_shape& shape) {
  trace_writer writer(folder, {.layers = shape.layers,
                               .experts_per_token = shape.experts_per_token,
                               .properties = {.experts = shape.experts}});
  domain_router router(shape);
  for (std::uint32_t r = 0; r < shape.requests; ++r) {
    const std::uint32_t domain = r % shape.domains;
    const auto choices = router.tokens(domain, shape.prefill_tokens + shape.decode_tokens);
    writer.add({.id = "r" + std::to_string(r),
                .label = "domain-" + std::to_string(domain),
                .prefill_rows = shape.prefill_tokens,
                .choices = choices});
  }
  writer.finish();
}

/// Recorded traces of large models, where a developer has them: $ELDR_SHARED_DATA, else a `shared`
/// folder beside the source tree.
inline std::optional<std::filesystem::path> recorded_trace(const std::string& name) {
  const char* given = std::getenv("ELDR_SHARED_DATA");
  const std::filesystem::path data =
      given != nullptr ? std::filesystem::path(given)
                       : std::filesystem::path(ELDR_SOURCE_DIR) / ".." / "shared" / "data";
  std::error_code ignored;
  if (!std::filesystem::exists(data / name / "requests.jsonl", ignored)) {
    return std::nullopt;
  }
  return data / name;
}

}  // namespace eldr::fit::testing
