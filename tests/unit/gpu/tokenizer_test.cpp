#include "gpu/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "gpu/byte_level.hpp"
#include "gpu/byte_pair.hpp"
#include "gpu/model_files.hpp"
#include "gpu/split_regex.hpp"
#include "gpu/text_stream.hpp"

namespace {

using eldr::gpu::token_id;
using eldr::gpu::tokenizer;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using ids_t = std::vector<token_id>;

template <typename Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "accepted";
}

const tokenizer& default_tokenizer() {
  static const tokenizer tokens(eldr::gpu::open_model("")->tokenizer_json());
  return tokens;
}

json golden() {
  std::ifstream file(ELDR_SOURCE_DIR "/models/tiny-moe/golden.json");
  return json::parse(file);
}

TEST(tokenizer, prompts_have_the_golden_ids) {
  const json cases = golden();
  ASSERT_EQ(cases.size(), 14U);
  for (const json& c : cases) {
    EXPECT_EQ(default_tokenizer().encode(c["text"].get<std::string>()),
              c["prompt_ids"].get<ids_t>())
        << c["label"];
  }
}

TEST(tokenizer, generated_ids_have_the_golden_text) {
  for (const json& c : golden()) {
    eldr::gpu::text_stream stream(default_tokenizer());
    std::string text;
    for (const token_id id : c["greedy"].get<ids_t>()) {
      text += stream.feed(id);
    }
    EXPECT_EQ(text + stream.flush(), c["greedy_text"].get<std::string>()) << c["label"];
  }
}

TEST(tokenizer, decoding_undoes_encoding) {
  std::mt19937_64 random(4);
  const std::vector<std::string> parts{"the ",
                                       "\n\n",
                                       " 123456",
                                       "\t",
                                       "\xC3\xA9t\xC3\xA9",
                                       "\xD0\xB4\xD0\xB0",
                                       "\xE6\x97\xA5\xE6\x9C\xAC",
                                       "  ",
                                       "=>{};",
                                       "\xF0\x9F\x98\x80",
                                       std::string(1, '\0'),
                                       "\x7F",
                                       "e\xCC\x81"};
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (std::uint64_t n = random() % 30; n > 0; --n) {
      text += parts[random() % parts.size()];
    }
    const ids_t ids = default_tokenizer().encode(text);
    ASSERT_EQ(ids.front(), 257U);
    ASSERT_EQ(default_tokenizer().decode(ids), text);
    ASSERT_EQ(default_tokenizer().encode(text, false), ids_t(ids.begin() + 1, ids.end()));
  }
}

TEST(tokenizer, an_empty_text_is_the_template_alone) {
  EXPECT_THAT(default_tokenizer().encode(""), ElementsAre(257U));
  EXPECT_TRUE(default_tokenizer().encode("", false).empty());
}

TEST(tokenizer, special_tokens_are_found_in_text_and_have_no_bytes) {
  const ids_t ids = default_tokenizer().encode("<eos>a<pad><unused>b<eo", false);
  EXPECT_EQ(ids.front(), 258U);
  EXPECT_THAT(ids, testing::IsSupersetOf({256U, 259U}));
  EXPECT_EQ(default_tokenizer().decode(ids), "ab<eo");
  EXPECT_EQ(default_tokenizer().bytes_of(0xFFFF'FFFF), "");
  EXPECT_EQ(default_tokenizer().vocab_size(), 3072U);
}

TEST(tokenizer, long_and_monotonous_text_takes_no_quadratic_time) {
  // Quadratic algorithms need minutes here; the test's time limit is the assertion.
  for (const std::string unit : {"a", " ", "\n", "ab", "\xE6\x97\xA5", "!", "<", "a b", " \t"}) {
    std::string text;
    while (text.size() < 200'000) {
      text += unit;
    }
    EXPECT_EQ(default_tokenizer().decode(default_tokenizer().encode(text)), text);
  }
}

TEST(tokenizer, text_that_is_not_utf8_is_refused) {
  EXPECT_THAT(refusal([] { default_tokenizer().encode("ab\xFF"); }), HasSubstr("at byte 2"));
  EXPECT_THAT(refusal([] { default_tokenizer().encode("\xE2\x82"); }), HasSubstr("at byte 0"));
  EXPECT_THAT(
      refusal([] { default_tokenizer().encode(std::string(tokenizer::text_bytes_max + 1, 'a')); }),
      HasSubstr("longest possible"));
}

// The encoder of one piece against the definition.

class merge_reference {
 public:
  void add(token_id left, token_id right, token_id merged) {
    ranks_[{left, right}] = {next_++, merged};
  }
  ids_t encode(ids_t ids) const {
    while (true) {
      std::size_t best = ids.size();
      std::pair<std::uint32_t, token_id> found{std::numeric_limits<std::uint32_t>::max(), 0};
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto rank = ranks_.find({ids[i], ids[i + 1]});
        if (rank != ranks_.end() && rank->second.first < found.first) {
          found = rank->second;
          best = i;
        }
      }
      if (best == ids.size()) {
        return ids;
      }
      ids[best] = found.second;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
  }

 private:
  std::map<std::pair<token_id, token_id>, std::pair<std::uint32_t, token_id>> ranks_;
  std::uint32_t next_ = 0;
};

TEST(byte_pair_encoder, equals_merging_by_definition) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 200; ++round) {
    std::array<token_id, 256> bytes{};
    for (token_id b = 0; b < 256; ++b) {
      bytes[b] = b;
    }
    eldr::gpu::byte_pair_encoder encoder(bytes);
    merge_reference reference;
    // Real merges join what exists, so ids stand for strings.
    std::vector<std::string> tokens{"a", "b", "c"};
    std::map<std::string, token_id> ids{{"a", 'a'}, {"b", 'b'}, {"c", 'c'}};
    for (token_id next = 300; next < 340; ++next) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      const auto [merged, added] = ids.emplace(left + right, next);
      if (added) {
        tokens.push_back(left + right);
      }
      encoder.add_merge(ids[left], ids[right], merged->second);
      reference.add(ids[left], ids[right], merged->second);
    }
    eldr::gpu::byte_pair_encoder::workspace space;
    for (int i = 0; i < 20; ++i) {
      std::string piece;
      for (std::uint64_t n = random() % 60; n > 0; --n) {
        piece += static_cast<char>('a' + random() % (1 + round % 3));
      }
      ids_t encoded;
      encoder.encode(piece, space, encoded);
      ASSERT_EQ(encoded, reference.encode(ids_t(piece.begin(), piece.end()))) << piece;
    }
  }
}

TEST(byte_level, the_alphabet_is_gpt2s) {
  constexpr auto alphabet = eldr::gpu::byte_level_alphabet();
  EXPECT_EQ(alphabet['A'], U'A');
  EXPECT_EQ(alphabet[0], 0x100U);
  EXPECT_EQ(alphabet[' '], 0x120U);
  EXPECT_EQ(alphabet[0x7F], 0x121U);
  EXPECT_EQ(alphabet[0xAD], 0x143U);
  EXPECT_EQ(eldr::gpu::byte_level_decode("\xC4\xA0the"), " the");
  EXPECT_EQ(eldr::gpu::byte_level_decode("a b"), std::nullopt);
  EXPECT_EQ(eldr::gpu::byte_level_decode("\xE6\x97\xA5"), std::nullopt);
}

std::vector<std::string_view> split(const std::string& pattern, std::string_view text) {
  std::vector<std::string_view> pieces;
  eldr::gpu::split_regex(pattern).split(text, pieces);
  return pieces;
}

TEST(split_regex, keeps_matches_and_what_is_between) {
  EXPECT_THAT(split("[0-9]+", "ab12c345"), ElementsAre("ab", "12", "c", "345"));
  EXPECT_THAT(split("x*", "a\xC3\xA9xxb"), ElementsAre("a", "\xC3\xA9", "xx", "b"));
  EXPECT_THAT(split("(?=b)", "abab"), ElementsAre("a", "ba", "b"));
  EXPECT_THAT(split("x", ""), ElementsAre());
  EXPECT_THAT(split("\\p{L}+|\\s", "\xD0\xB4\xD0\xB0 \xE6\x97\xA5"),
              ElementsAre("\xD0\xB4\xD0\xB0", " ", "\xE6\x97\xA5"));
  EXPECT_THAT(split("[\\u0430-\\u044F]+|\\\\u", "a\xD0\xB4\xD0\xB0\\u"),
              ElementsAre("a", "\xD0\xB4\xD0\xB0", "\\u"));
  EXPECT_THAT(refusal([] { eldr::gpu::split_regex("(a"); }), HasSubstr("pattern (a"));
}

TEST(split_regex, an_explosive_pattern_ends_with_an_error) {
  EXPECT_THAT(refusal([] { split("(a+)+$", std::string(40, 'a') + "b"); }),
              HasSubstr("cannot be split"));
}

// Other tokenizer files.

/// A tokenizer of the 256 bytes, and "ab", "abc" and " a" from merges.
json small_tokenizer() {
  json vocab;
  const auto alphabet = eldr::gpu::byte_level_alphabet();
  for (token_id byte = 0; byte < 256; ++byte) {
    const char32_t c = alphabet[byte];
    const std::string text = c < 0x80 ? std::string{static_cast<char>(c)}
                                      : std::string{static_cast<char>(0xC0 | c >> 6),
                                                    static_cast<char>(0x80 | (c & 63))};
    vocab[text] = byte;
  }
  vocab.update(json::parse(R"({"ab":256,"abc":257,"\u0120a":258})"));
  json file = json::parse(R"({
      "added_tokens":[], "normalizer":null, "post_processor":null, "decoder":{"type":"ByteLevel"},
      "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},
      "model":{"type":"BPE","merges":["a b","ab c","\u0120 a"]}})");
  file["model"]["vocab"] = vocab;
  return file;
}

json added(token_id id, const std::string& content, bool special, bool normalized) {
  json token = json::parse(R"({"single_word":false,"lstrip":false,"rstrip":false})");
  token["id"] = id;
  token["content"] = content;
  token["special"] = special;
  token["normalized"] = normalized;
  return token;
}

TEST(tokenizer_file, merges_may_be_strings_or_pairs) {
  json file = small_tokenizer();
  const ids_t expected{257, ' ', 256};
  EXPECT_EQ(tokenizer(file.dump()).encode("abc ab"), expected);
  file["model"]["merges"] = json::parse(R"([["a","b"],["ab","c"],["\u0120","a"]])");
  EXPECT_EQ(tokenizer(file.dump()).encode("abc ab"), expected);
}

TEST(tokenizer_file, added_tokens_match_as_written_and_the_longest_wins) {
  json file = small_tokenizer();
  file["added_tokens"] = {added(300, "<x>", true, false), added(301, "<x>ab", true, false),
                          added(302, "ab", false, true), added(303, "b<", false, false)};
  const tokenizer tokens(file.dump());
  EXPECT_THAT(tokens.encode("<x>abc"), ElementsAre(301, 'c'));
  // Tokens that match the text as given come before those that match normalized text, even where
  // the latter begin earlier.
  EXPECT_THAT(tokens.encode("ab<x>"), ElementsAre('a', 303, 'x', '>'));
  EXPECT_THAT(tokens.encode("abc<x>"), ElementsAre(302, 'c', 300));
  EXPECT_EQ(tokens.decode({300, 302, 299, 303}), "abb<");
  EXPECT_EQ(tokens.vocab_size(), 304U);
}

TEST(tokenizer_file, several_splits_refine_each_other) {
  json file = small_tokenizer();
  const auto steps = [](const std::string& second) {
    return json::parse(R"({"type":"Sequence","pretokenizers":[
        {"type":"Split","pattern":{"Regex":"\\d"},"behavior":"Isolated"},
        {"type":"Split","pattern":{"String":")" +
                       second + R"("},"behavior":"Isolated"},
        {"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})");
  };
  file["pre_tokenizer"] = steps("b");
  EXPECT_THAT(tokenizer(file.dump()).encode("ab1abc"), ElementsAre('a', 'b', '1', 'a', 'b', 'c'));
  file["pre_tokenizer"] = steps(".");
  EXPECT_THAT(tokenizer(file.dump()).encode("ab1abc"), ElementsAre(256, '1', 257));
}

TEST(tokenizer_file, the_template_may_stand_on_both_sides) {
  json file = small_tokenizer();
  file["post_processor"] = json::parse(R"({"type":"Sequence","processors":[
      {"type":"ByteLevel"},
      {"type":"TemplateProcessing",
       "single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}},
                 {"SpecialToken":{"id":"</s>"}}],
       "special_tokens":{"<s>":{"ids":[300]},"</s>":{"ids":[301]}}}]})");
  EXPECT_THAT(tokenizer(file.dump()).encode("abc"), ElementsAre(300, 257, 301));
}

TEST(tokenizer_file, nfc_leaves_composed_text_alone_and_refuses_the_rest) {
  json file = small_tokenizer();
  file["normalizer"] = {{"type", "NFC"}};
  const tokenizer tokens(file.dump());
  for (const std::string text :
       {"plain", "\xC3\xA9t\xC3\xA9", "\xE6\x97\xA5\xE6\x9C\xAC", "\xED\x95\x9C\xEA\xB8\x80"}) {
    EXPECT_EQ(tokens.decode(tokens.encode(text)), text);
  }
  EXPECT_THAT(refusal([&] { tokens.encode("e\xCC\x81"); }), HasSubstr("NFC"));
  EXPECT_THAT(refusal([&] { tokens.encode("\xE2\x84\xA6"); }), HasSubstr("NFC"));
}

struct fault {
  const char* pointer;  ///< What is changed in a valid file,
  const char* value;    ///< to this JSON text,
  const char* says;     ///< and what the error says.
};
void PrintTo(const fault& f, std::ostream* out) {
  *out << f.pointer << " to " << f.value;
}

class refused_tokenizer : public testing::TestWithParam<fault> {};

TEST_P(refused_tokenizer, by_name) {
  json file = small_tokenizer();
  file[json::json_pointer(GetParam().pointer)] = json::parse(GetParam().value);
  EXPECT_THAT(refusal([&] { tokenizer(file.dump()); }), HasSubstr(GetParam().says));
}
INSTANTIATE_TEST_SUITE_P(
    faults, refused_tokenizer,
    testing::Values(
        fault{"/model/type", R"("WordPiece")", "model WordPiece"},
        fault{"/model/dropout", "0.1", "dropout"},
        fault{"/model/byte_fallback", "true", "byte_fallback"},
        fault{"/model/ignore_merges", "true", "ignore_merges"},
        fault{"/model/continuing_subword_prefix", R"("##")", "continuing_subword_prefix"},
        fault{"/model/end_of_word_suffix", R"("</w>")", "end_of_word_suffix"},
        fault{"/model/vocab", R"({"a":0})", "1 of the 256 bytes"},
        fault{"/model/vocab/zz", "0", "two tokens have the id 0"},
        fault{"/model/vocab/zz", "-1", "token id"}, fault{"/model/vocab/zz", "4194304", "token id"},
        fault{"/model/merges/0", R"("a z")", "merge of a and z"},
        fault{"/model/merges/0", R"("ab")", "not a pair"},
        fault{"/model/merges/0", R"("a b c")", "not a pair"},
        fault{"/model/merges/0", "7", "not what"},
        fault{"/model/merges/0", R"(["a","b","c"])", "not what"},
        fault{"/normalizer", R"({"type":"Lowercase"})", "normalizer Lowercase"},
        fault{"/pre_tokenizer", "null", "no pre-tokenizer"},
        fault{"/pre_tokenizer", R"({"type":"Metaspace"})", "pre-tokenizer Metaspace"},
        fault{"/pre_tokenizer/add_prefix_space", "true", "add_prefix_space"},
        fault{"/pre_tokenizer", R"({"type":"Split","behavior":"Removed","pattern":{"String":"a"}})",
              "Split"},
        fault{"/pre_tokenizer",
              R"({"type":"Split","behavior":"Isolated","pattern":{"String":"a"}})",
              "not ByteLevel"},
        fault{"/pre_tokenizer",
              R"({"type":"Sequence","pretokenizers":[
                  {"type":"Split","behavior":"Isolated","pattern":{"Regex":"(a"}},
                  {"type":"ByteLevel","add_prefix_space":false}]})",
              "pattern (a"},
        fault{"/post_processor", R"({"type":"BertProcessing"})", "post-processor BertProcessing"},
        fault{"/post_processor", R"({"type":"TemplateProcessing","single":[]})", "lacks the text"},
        fault{"/decoder", R"({"type":"Metaspace"})", "decoder Metaspace"},
        fault{"/truncation", R"({"max_length":5})", "truncation"},
        fault{"/added_tokens", R"([{"id":1,"content":"<m>","lstrip":true}])", "lstrip"},
        fault{"/added_tokens", R"([{"id":"x","content":"<m>"}])", "token id"},
        fault{"/added_tokens", R"([{"content":"<m>"}])", "not what"}));

TEST(tokenizer_file, deep_nesting_does_no_harm) {
  constexpr std::size_t depth = 200'000;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  for (const std::string key : {"pre_tokenizer", "post_processor", "normalizer", "model"}) {
    std::string text = small_tokenizer().dump();
    text.pop_back();
    text += ",\"" + key + "\":{\"type\":\"Deep\",\"x\":" + deep + "}}";
    EXPECT_THAT(refusal([&] { tokenizer{text}; }), HasSubstr("Deep is not supported"));
  }
}

TEST(tokenizer_file, text_that_is_no_tokenizer_is_refused) {
  EXPECT_THAT(refusal([] { tokenizer(""); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal([] { tokenizer("[]"); }), HasSubstr("not what"));
  EXPECT_THAT(refusal([] { tokenizer("{\"model\":{}}"); }), HasSubstr("not what"));
  const std::string text = small_tokenizer().dump();
  for (std::size_t n = 0; n < text.size(); n += 17) {
    EXPECT_THROW(tokenizer(text.substr(0, n)), std::runtime_error);
  }
}

}  // namespace
