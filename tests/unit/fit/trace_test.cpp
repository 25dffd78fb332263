#include "fit/trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "fit/counts.hpp"
#include "fit/error.hpp"
#include "fit/trace_info.hpp"
#include "synthetic.hpp"

namespace eldr::fit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::temporary_folder;

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const fit_error& error) {
    return error.what();
  }
  return "";
}

/// A trace of two requests, two layers, four experts, two of them per token.
class small_trace : public ::testing::Test {
 protected:
  small_trace() { write(choices_, index_); }

  void write(const std::vector<std::uint8_t>& choices, const std::string& index) {
    npy_writer writer(folder_.path() / "routed_experts.npy", npy_type::uint8, {2, 2});
    writer.append(std::as_bytes(std::span(choices)));
    writer.finish();
    std::ofstream(folder_.path() / "requests.jsonl") << index;
  }

  void write_gate(const char* name, std::vector<float> values, std::uint64_t width) {
    npy_writer writer(folder_.path() / name, npy_type::float32, {2, width});
    writer.append(std::as_bytes(std::span(values)));
    writer.finish();
  }

  std::string open_error() {
    return error_of([this] { trace::open(folder_.path()); });
  }
  std::string count_error(std::uint32_t experts = 4) {
    return error_of([this, experts] { count_trace(trace::open(folder_.path()), experts, 1); });
  }

  temporary_folder folder_;
  std::vector<std::uint8_t> choices_{0, 1, 2, 3,  // a, prefill
                                     1, 0, 3, 2,  // a, decode
                                     0, 2, 0, 1,  // b, prefill
                                     2, 3, 1, 2};
  std::string index_ = R"({"id": "a", "first_row": 0, "rows": 2, "prefill_rows": 1, "label": "x"}
{"id": "b", "first_row": 2, "rows": 2, "prefill_rows": 2}
)";
};

TEST_F(small_trace, is_read_and_counted) {
  const auto source = trace::open(folder_.path());
  EXPECT_EQ(source.rows(), 4u);
  EXPECT_EQ(source.layers(), 2u);
  EXPECT_EQ(source.experts_per_token(), 2u);
  EXPECT_EQ(source.experts_seen(), 4u);
  EXPECT_EQ(source.requests()[0].label, "x");
  const auto counts = count_trace(source, 4);
  EXPECT_THAT(counts.prefill_of(0), ElementsAre(1, 1, 0, 0, 0, 0, 1, 1));
  EXPECT_THAT(counts.decode_of(0), ElementsAre(1, 1, 0, 0, 0, 0, 1, 1));
  EXPECT_THAT(counts.prefill_of(1), ElementsAre(1, 0, 2, 1, 1, 2, 1, 0));
  EXPECT_THAT(counts.decode_of(1), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(counts.prefill_tokens, ElementsAre(1, 2));
  EXPECT_THAT(counts.decode_tokens, ElementsAre(1, 0));
}

TEST_F(small_trace, counts_a_selection_in_the_given_order) {
  const std::vector<std::uint32_t> which{1};
  const auto counts = count_trace(trace::open(folder_.path()), 4, which);
  EXPECT_EQ(counts.requests, 1u);
  EXPECT_THAT(counts.prefill_of(0), ElementsAre(1, 0, 2, 1, 1, 2, 1, 0));
}

TEST_F(small_trace, refuses_ids_of_experts_that_do_not_exist) {
  EXPECT_THAT(count_error(3),
              HasSubstr("row 0, layer 1 has expert id 3 where the model has 3 experts"));
}

TEST_F(small_trace, refuses_an_expert_chosen_twice_by_a_token) {
  choices_[13] = 2;
  write(choices_, index_);
  EXPECT_THAT(count_error(), HasSubstr("'b'"));
  EXPECT_THAT(count_error(), HasSubstr("row 3"));
  EXPECT_THAT(count_error(), HasSubstr("expert id 2 twice"));
}

TEST_F(small_trace, names_rows_that_were_not_recorded_and_empty_layers) {
  std::fill_n(choices_.begin() + 4, 4, std::uint8_t{0});
  write(choices_, index_);
  EXPECT_THAT(count_error(), HasSubstr("all zero"));
  choices_ = {0, 1, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 2, 3, 0, 0};
  write(choices_, index_);
  EXPECT_THAT(count_error(), HasSubstr("empty layer"));
}

TEST_F(small_trace, refuses_wrong_rows) {
  const std::string a = R"({"id": "a", "first_row": 0, "rows": )";
  write(choices_, a + R"(5, "prefill_rows": 1})");
  EXPECT_THAT(open_error(), HasSubstr("past the end"));
  write(choices_, a + R"(2, "prefill_rows": 3})");
  EXPECT_THAT(open_error(), HasSubstr("line 1"));
  write(choices_, a + R"(0, "prefill_rows": 0})");
  EXPECT_THAT(open_error(), HasSubstr("at least one row"));
  write(choices_, a + R"(-1, "prefill_rows": 0})");
  EXPECT_THAT(open_error(), HasSubstr("'rows' must be a whole number"));
  write(choices_, a + R"(18446744073709551615, "prefill_rows": 0})");
  EXPECT_THAT(open_error(), HasSubstr("past the end"));
  write(choices_, a + "3, \"prefill_rows\": 1}\n" +
                      R"({"id": "b", "first_row": 2, "rows": 2, "prefill_rows": 2})");
  EXPECT_THAT(open_error(), HasSubstr("share rows"));
}

TEST_F(small_trace, refuses_a_malformed_index) {
  write(choices_, "");
  EXPECT_THAT(open_error(), HasSubstr("empty"));
  write(choices_, "{\"id\": \"a\", \"first_row\"");
  EXPECT_THAT(open_error(), HasSubstr("line 1: this is no JSON object"));
  write(choices_, R"({"first_row": 0, "rows": 1, "prefill_rows": 1})");
  EXPECT_THAT(open_error(), HasSubstr("'id' is missing"));
  write(choices_, R"({"id": ["a"], "first_row": 0, "rows": 1, "prefill_rows": 1})");
  EXPECT_THAT(open_error(), HasSubstr("'id' must be text"));
  const std::string twice = R"({"id": "a", "first_row": 0, "rows": 1, "prefill_rows": 1})";
  write(choices_, twice + "\n" + twice);
  EXPECT_THAT(open_error(), HasSubstr("used before"));
}

TEST_F(small_trace, refuses_arrays_of_another_shape_or_type) {
  npy_writer flat(folder_.path() / "routed_experts.npy", npy_type::uint8, {4});
  flat.finish();
  EXPECT_THAT(open_error(), HasSubstr("[rows][layers][k]"));
  npy_writer real(folder_.path() / "routed_experts.npy", npy_type::float32, {2, 2});
  real.finish();
  EXPECT_THAT(open_error(), HasSubstr("uint8 or uint16"));
  npy_writer layerless(folder_.path() / "routed_experts.npy", npy_type::uint8, {0, 2});
  layerless.finish();
  EXPECT_THAT(open_error(), HasSubstr("1 to 1024 layers"));
}

TEST_F(small_trace, refuses_missing_files) {
  std::filesystem::remove(folder_.path() / "routed_experts.npy");
  EXPECT_THAT(open_error(), HasSubstr("routed_experts.npy"));
  std::filesystem::remove(folder_.path() / "requests.jsonl");
  EXPECT_THAT(open_error(), HasSubstr("requests.jsonl"));
}

TEST_F(small_trace, sums_gate_values_of_chosen_experts) {
  // [rows][layers][k], in the order of the ids.
  write_gate("gate_probabilities.npy",
             {0.75f, 0.25f, 0.5f, 0.5f, 1, 0, 1, 0, 0.5f, 0.5f, 1, 0, 0.25f, 0.75f, 1, 0}, 2);
  const auto counts = count_trace(trace::open(folder_.path()), 4);
  ASSERT_EQ(counts.gate_probabilities.size(), 16u);
  const auto of = [&counts](std::size_t request) {
    return std::span(counts.gate_probabilities).subspan(request * 8, 8);
  };
  EXPECT_THAT(of(0), ElementsAre(0.75f, 0.25f, 0, 0, 0, 0, 0.5f, 0.5f));
  EXPECT_THAT(of(1), ElementsAre(0.5f, 0, 0.75f, 0.75f, 1, 1, 0, 0));
}

TEST_F(small_trace, sums_logits_of_all_experts) {
  std::vector<float> logits(4 * 2 * 4);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i) - 3;
  }
  write_gate("logits.npy", logits, 4);
  const auto counts = count_trace(trace::open(folder_.path()), 4);
  EXPECT_THAT(std::span(counts.logits).first(8), ElementsAre(-3, -2, -1, 0, 1, 2, 3, 4));
}

TEST_F(small_trace, refuses_gate_values_that_are_no_numbers) {
  std::vector<float> values(16, 0.5f);
  values[9] = NAN;
  write_gate("gate_probabilities.npy", values, 2);
  EXPECT_THAT(count_error(), HasSubstr("gate probability of row 2, layer 0 is NaN"));
  values[9] = -0.5f;
  write_gate("gate_probabilities.npy", values, 2);
  EXPECT_THAT(count_error(), HasSubstr("negative"));
  std::filesystem::remove(folder_.path() / "gate_probabilities.npy");
  write_gate("logits.npy", values, 2);
  EXPECT_EQ(count_error(), "");
  values[9] = INFINITY;
  write_gate("logits.npy", values, 2);
  EXPECT_THAT(count_error(), HasSubstr("logit of row 2"));
}

TEST_F(small_trace, refuses_gate_values_of_another_shape) {
  write_gate("logits.npy", std::vector<float>(12, 0), 2);
  EXPECT_THAT(open_error(), HasSubstr("logits.npy"));
  write_gate("logits.npy", std::vector<float>(24, 0), 3);
  EXPECT_THAT(count_error(), HasSubstr("3 entries a layer"));
}

TEST_F(small_trace, knows_its_properties) {
  std::ofstream(folder_.path() / "trace.json") << R"({"experts": 4, "model": "tiny"})";
  EXPECT_EQ(trace::open(folder_.path()).properties().experts, 4u);
  EXPECT_EQ(trace::open(folder_.path()).properties().model, "tiny");
  std::ofstream(folder_.path() / "trace.json") << R"({"experts": 0})";
  EXPECT_THAT(open_error(), HasSubstr("'experts'"));
  std::ofstream(folder_.path() / "trace.json") << "[";
  EXPECT_THAT(open_error(), HasSubstr("no JSON object"));
}

TEST_F(small_trace, has_a_digest_of_its_content) {
  const auto digest = trace::open(folder_.path()).digest();
  EXPECT_EQ(trace::open(folder_.path()).digest(), digest);
  choices_[0] = 2;
  write(choices_, index_);
  EXPECT_NE(trace::open(folder_.path()).digest(), digest);
}

TEST(trace_writer, round_trips_with_gate_values_and_wide_ids) {
  const temporary_folder folder;
  const auto path = folder.path() / "trace";
  trace_writer writer(path, {.layers = 1,
                             .experts_per_token = 2,
                             .properties = {.experts = 300, .block_tokens = 32, .model = "m"},
                             .gate_probabilities = true,
                             .logits = true});
  const std::vector<std::uint16_t> choices{299, 0, 5, 6};
  const std::vector<float> probabilities{0.5f, 0.5f, 0.25f, 0.75f}, logits{1, 2, 3, 4};
  writer.add({.id = "a \"quoted\" id",
              .label = "law",
              .prefill_rows = 1,
              .choices = choices,
              .gate_probabilities = probabilities,
              .logits = logits});
  writer.finish();
  const auto source = trace::open(path);
  EXPECT_EQ(source.properties().experts, 300u);
  EXPECT_EQ(source.properties().block_tokens, 32u);
  ASSERT_EQ(source.requests().size(), 1u);
  EXPECT_EQ(source.requests()[0].id, "a \"quoted\" id");
  EXPECT_EQ(source.requests()[0].label, "law");
  EXPECT_EQ(source.requests()[0].prefill_rows, 1u);
  std::vector<std::uint16_t> row(2);
  source.read_row(1, row);
  EXPECT_THAT(row, ElementsAre(5, 6));
  const auto counts = count_trace(source, 300);
  EXPECT_EQ(counts.gate_probabilities[299], 0.5f);
  EXPECT_EQ(counts.logits[0], 2);
}

TEST(trace_writer, refuses_bad_requests_and_keeps_the_good_ones) {
  const temporary_folder folder;
  const auto path = folder.path() / "trace";
  trace_writer writer(path, {.layers = 2, .experts_per_token = 2, .properties = {.experts = 4}});
  const auto error_with = [&writer](std::vector<std::uint16_t> choices, std::uint64_t prefill,
                                    const std::string& id) {
    return error_of([&] { writer.add({id, "", prefill, choices}); });
  };
  EXPECT_EQ(error_with({0, 1, 2, 3}, 1, "a"), "");
  EXPECT_THAT(error_with({0, 1, 2, 3}, 1, "a"), HasSubstr("used before"));
  EXPECT_THAT(error_with({0, 1, 2, 4}, 1, "b"), HasSubstr("expert id 4"));
  EXPECT_THAT(error_with({0, 1, 2, 2}, 1, "b"), HasSubstr("twice"));
  EXPECT_THAT(error_with({0, 1, 2}, 1, "b"), HasSubstr("rows of [layers][k]"));
  EXPECT_THAT(error_with({0, 1, 2, 3}, 2, "b"), HasSubstr("prefill_rows"));
  EXPECT_THAT(error_with({}, 0, "b"), HasSubstr("rows"));
  EXPECT_EQ(error_with({0, 1, 2, 3}, 0, "c"), "");
  writer.finish();
  EXPECT_EQ(trace::open(path).requests().size(), 2u);
}

TEST(trace_writer, never_overwrites_a_trace_and_checks_geometry) {
  const temporary_folder folder;
  const auto path = folder.path() / "trace";
  const trace_writer_options options{
      .layers = 1, .experts_per_token = 1, .properties = {.experts = 4}};
  trace_writer(path, options).finish();
  EXPECT_THAT(error_of([&] { trace_writer(path, options); }), HasSubstr("already holds a trace"));
  EXPECT_THROW(trace_writer(folder.path() / "b",
                            {.layers = 1, .experts_per_token = 5, .properties = {.experts = 4}}),
               fit_error);
  EXPECT_THROW(trace_writer(folder.path() / "c", {}), fit_error);
}

TEST(trace_counts_of_long_requests, are_refused_above_16_bits) {
  const temporary_folder folder;
  const auto path = folder.path() / "trace";
  trace_writer writer(path, {.layers = 1, .experts_per_token = 1, .properties = {.experts = 2}});
  const std::vector<std::uint16_t> choices(65'536, 1);
  writer.add({"longest", "", 65'535, std::span(choices).first(65'535)});
  writer.finish();
  EXPECT_EQ(count_trace(trace::open(path), 2).prefill[1], 65'535);
  const auto longer = folder.path() / "longer";
  trace_writer other(longer, {.layers = 1, .experts_per_token = 1, .properties = {.experts = 2}});
  other.add({"too long", "", 1, choices});
  other.finish();
  EXPECT_THAT(error_of([&] { count_trace(trace::open(longer), 2); }), HasSubstr("65535"));
}

TEST(trace_summary, tells_entropy_correlation_and_unions) {
  const temporary_folder folder;
  const auto path = folder.path() / "trace";
  testing::write_synthetic_trace(path, {.requests = 64, .layers = 2});
  const auto summary = summarise_trace(trace::open(path), 16);
  EXPECT_EQ(summary.requests, 64u);
  EXPECT_EQ(summary.prefill_tokens, 64u * 20);
  EXPECT_EQ(summary.decode_tokens, 64u * 20);
  EXPECT_EQ(summary.labels.size(), 4u);
  ASSERT_EQ(summary.entropy.size(), 2u);
  EXPECT_GT(summary.entropy[0], 2);
  EXPECT_LE(summary.entropy[0], 4);
  ASSERT_TRUE(summary.correlation.has_value());
  EXPECT_GT(*summary.correlation, 0.5);
  ASSERT_TRUE(summary.unions.has_value());
  EXPECT_LT(summary.unions->same_label, summary.unions->mixed);
  EXPECT_THAT(summary_text(summary), HasSubstr("64 requests"));
}

TEST(trace_summary, of_uniform_use_has_full_entropy_and_no_unions) {
  const temporary_folder folder;
  trace_writer writer(folder.path() / "trace",
                      {.layers = 1, .experts_per_token = 1, .properties = {.experts = 4}});
  const std::vector<std::uint16_t> choices{0, 1, 2, 3};
  writer.add({"a", "", 4, choices});
  writer.finish();
  const auto summary = summarise_trace(trace::open(folder.path() / "trace"), 4);
  EXPECT_DOUBLE_EQ(summary.entropy[0], 2);
  EXPECT_FALSE(summary.correlation.has_value());
  EXPECT_FALSE(summary.unions.has_value());
}

}  // namespace
}  // namespace eldr::fit
