#include "fit/artifact.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <fstream>

#include "fit/error.hpp"
#include "fit/fit.hpp"
#include "fit/report.hpp"
#include "synthetic.hpp"

namespace eldr::fit {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t header_bytes = 32;

artifact small_artifact() {
  auto counts = testing::synthetic_counts({.requests = 30});
  counts.logits.assign(counts.prefill.begin(), counts.prefill.end());
  // A gain of -2 keeps the mask.
  return fit_routing(counts, {.slots = 3, .model = "tiny", .ep_ranks = 2, .mask_gain_min = -2});
}

std::string parse_error(std::span<const std::byte> file) {
  try {
    parse_artifact(file, "file");
  } catch (const fit_error& error) {
    return error.what();
  }
  return "";
}

/// Makes the checksum right again, as someone with a broken tool would.
void seal(std::vector<std::byte>& file) {
  const std::uint64_t bytes = file.size() - header_bytes;
  const std::uint64_t checksum = XXH3_64bits(file.data() + header_bytes, bytes);
  std::memcpy(file.data() + 16, &bytes, sizeof(bytes));
  std::memcpy(file.data() + 24, &checksum, sizeof(checksum));
}

TEST(artifact_file, round_trips_everything) {
  const auto written = small_artifact();
  const auto file = serialize_artifact(written);
  const auto read = parse_artifact(file, "file");
  EXPECT_EQ(serialize_artifact(read), file);
  EXPECT_EQ(report_text(read), report_text(written));
  EXPECT_EQ(read.model, "tiny");
  EXPECT_EQ(read.mask, written.mask);
  EXPECT_EQ(read.weights, written.weights);
  EXPECT_EQ(read.centroids, written.centroids);
  EXPECT_EQ(read.vanilla_centroids, written.vanilla_centroids);
  EXPECT_EQ(read.cluster_patterns, written.cluster_patterns);
  EXPECT_EQ(read.global_pattern, written.global_pattern);
  EXPECT_EQ(read.ep_rank_of, written.ep_rank_of);
  EXPECT_EQ(read.ep_rank_of.size(), 3u * 3 * 16);
  EXPECT_EQ(read.labels.size(), written.labels.size());
}

TEST(artifact_file, keeps_idf_weights) {
  auto written = small_artifact();
  written.kind = representation::count_idf;
  written.weights.assign(written.mask.size() * written.experts, 0.5f);
  EXPECT_EQ(parse_artifact(serialize_artifact(written), "file").weights, written.weights);
}

TEST(artifact_file, is_saved_and_loaded) {
  const testing::temporary_folder folder;
  const auto path = folder.path() / "routing.eldr";
  const auto written = small_artifact();
  save_artifact(written, path);
  save_artifact(written, path);
  EXPECT_EQ(serialize_artifact(load_artifact(path)), serialize_artifact(written));
  // No temporary file is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_THROW(load_artifact(folder.path() / "none"), fit_error);
  EXPECT_THROW(load_artifact(folder.path()), fit_error);
  EXPECT_THROW(save_artifact(written, folder.path() / "none" / "routing.eldr"), fit_error);
}

TEST(artifact_file, refuses_every_truncation) {
  const auto file = serialize_artifact(small_artifact());
  for (std::size_t size = 0; size < file.size(); size += size < 64 ? 1 : 41) {
    EXPECT_THAT(parse_error(std::span(file).first(size)), HasSubstr("truncated")) << size;
  }
  auto longer = file;
  longer.push_back(std::byte{0});
  EXPECT_THAT(parse_error(longer), HasSubstr("corrupt"));
}

TEST(artifact_file, refuses_flipped_bits_foreign_files_and_newer_versions) {
  const auto file = serialize_artifact(small_artifact());
  random_source random(1);
  for (int i = 0; i < 2000; ++i) {
    auto changed = file;
    changed[random.below(file.size())] ^= static_cast<std::byte>(1u << random.below(8));
    EXPECT_NE(parse_error(changed), "");
  }
  auto foreign = file;
  foreign[0] = std::byte{'X'};
  EXPECT_THAT(parse_error(foreign), HasSubstr("not written by eldr fit"));
  auto newer = file;
  newer[8] = std::byte{artifact_version + 1};
  EXPECT_THAT(parse_error(newer), HasSubstr("format version 2"));
}

TEST(artifact_file, survives_mutations_under_a_right_checksum) {
  const auto file = serialize_artifact(small_artifact());
  random_source random(2);
  int accepted = 0;
  for (int i = 0; i < 5000; ++i) {
    auto changed = file;
    // Mostly where structure is; numbers are by far the larger part of the file.
    for (std::uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
      const std::uint64_t range = random.below(2) == 0 ? 512 : file.size() - header_bytes;
      changed[header_bytes + random.below(range)] = static_cast<std::byte>(random.next());
    }
    seal(changed);
    accepted += parse_error(changed).empty();
  }
  // Many changes hit a number that may be any other.
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 5000);
  for (std::size_t size = header_bytes; size < file.size(); size += 97) {
    std::vector<std::byte> shorter(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    seal(shorter);
    EXPECT_NE(parse_error(shorter), "") << size;
  }
}

TEST(artifact_file, refuses_content_that_does_not_agree) {
  const auto refusal = [](auto change) {
    artifact routing = small_artifact();
    change(routing);
    return parse_error(serialize_artifact(routing));
  };
  EXPECT_THAT(refusal([](artifact& a) { a.centroids.pop_back(); }), HasSubstr("centroids"));
  EXPECT_THAT(refusal([](artifact& a) { a.centroids[0] = NAN; }), HasSubstr("centroids"));
  EXPECT_THAT(refusal([](artifact& a) { a.mask = {2, 1}; }), HasSubstr("mask"));
  EXPECT_THAT(refusal([](artifact& a) { a.mask = {9}; }), HasSubstr("mask"));
  EXPECT_THAT(refusal([](artifact& a) { a.mask = {}; }), HasSubstr("mask"));
  EXPECT_THAT(refusal([](artifact& a) { a.kind = representation::gate_logit; }),
              HasSubstr("representation"));
  EXPECT_THAT(refusal([](artifact& a) { a.slots = 0; }), HasSubstr("slots"));
  EXPECT_THAT(refusal([](artifact& a) { a.layers = 5000; }), HasSubstr("layers"));
  EXPECT_THAT(refusal([](artifact& a) { a.experts_per_token = 17; }), HasSubstr("per token"));
  EXPECT_THAT(refusal([](artifact& a) { a.ep_rank_of[0] = 2; }), HasSubstr("placement"));
  EXPECT_THAT(refusal([](artifact& a) { a.ep_ranks = 0; }), HasSubstr("EP ranks"));
  EXPECT_THAT(refusal([](artifact& a) { a.block_tokens = 0; }), HasSubstr("block size"));
}

TEST(artifact_fits, names_everything_that_differs) {
  const auto routing = small_artifact();
  EXPECT_NO_THROW(check_artifact_fits(routing, 3, 16, 2, 16));
  const auto refusal = [&routing](std::uint32_t layers, std::uint32_t experts, std::uint32_t k,
                                  std::uint32_t block_tokens) -> std::string {
    try {
      check_artifact_fits(routing, layers, experts, k, block_tokens);
    } catch (const fit_error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(4, 16, 2, 16), HasSubstr("layers 3 in the artifact and 4 here"));
  EXPECT_THAT(refusal(3, 32, 2, 16), HasSubstr("experts per layer 16"));
  EXPECT_THAT(refusal(3, 16, 4, 16), HasSubstr("experts per token 2"));
  EXPECT_THAT(refusal(3, 16, 2, 64), HasSubstr("KV block size 16 in the artifact and 64 here"));
  EXPECT_THAT(refusal(4, 16, 2, 64), ::testing::AllOf(HasSubstr("layers"), HasSubstr("block")));
}

}  // namespace
}  // namespace eldr::fit
