#include "gpu/tokenizer_file.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace eldr::gpu {

namespace {

using nlohmann::json;

constexpr std::uint32_t ids_max = 1U << 22;  ///< Ten times the largest vocabularies.

/// What the ByteLevel pre-tokenizer splits by unless it is told not to (GPT-2's pattern).
constexpr const char* byte_level_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error("tokenizer.json: " + what);
}

const json& value_of(const json& object, const char* key) {
  static const json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

/// An object's "type".
std::string type_of(const json& object) {
  return object.at("type").get<std::string>();
}

/// Calls `use` with each member of a Sequence (its list is called `list`), or with what is none.
template <typename Use>
void for_each_step(const json& root, const char* list, Use use) {
  if (type_of(root) != "Sequence") {
    use(root);
    return;
  }
  for (const json& step : root.at(list)) {
    use(step);
  }
}

bool flag(const json& object, const char* key, bool otherwise) {
  const json& value = value_of(object, key);
  return value.is_null() ? otherwise : value.get<bool>();
}

token_id as_id(const json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= ids_max) {
    fail(fmt::format("a token id is not a whole number below {}.", ids_max));
  }
  return value.get<token_id>();
}

/// Refuses an option that is neither absent, null, false, 0 nor empty.
void require_off(const json& object, const char* key) {
  const json& value = value_of(object, key);
  if (!value.is_null() && value != false && value != 0 && value != 0.0 && value != "") {
    fail(fmt::format("the option {} is not supported.", key));
  }
}

void parse_added_tokens(const json& list, tokenizer_file& file) {
  for (const json& entry : list) {
    tokenizer_file::added_token token{as_id(entry.at("id")), entry.at("content"),
                                      flag(entry, "special", false),
                                      flag(entry, "normalized", true)};
    for (const char* const option : {"single_word", "lstrip", "rstrip"}) {
      if (flag(entry, option, false)) {
        fail(fmt::format("the option {} of added token {} is not supported.", option,
                         token.content));
      }
    }
    if (!token.content.empty()) {
      file.added.push_back(std::move(token));
    }
  }
}

void parse_normalizer(const json& normalizer, tokenizer_file& file) {
  if (normalizer.is_null()) {
    return;
  }
  if (type_of(normalizer) != "NFC") {
    fail(fmt::format("the normalizer {} is not supported, only NFC is.", type_of(normalizer)));
  }
  file.nfc = true;
}

void parse_split(const json& split, tokenizer_file& file) {
  if (split.at("behavior") != "Isolated" || flag(split, "invert", false)) {
    fail("a Split pre-tokenizer other than Isolated, not inverted, is not supported.");
  }
  const json& pattern = split.at("pattern");
  const bool literal = pattern.contains("String");
  file.splits.push_back({pattern.at(literal ? "String" : "Regex").get<std::string>(), literal});
}

/// Returns whether this was ByteLevel.
bool parse_pre_tokenizer(const json& step, tokenizer_file& file) {
  const std::string type = type_of(step);
  if (type == "Split") {
    parse_split(step, file);
    return false;
  }
  if (type != "ByteLevel") {
    fail(fmt::format("the pre-tokenizer {} is not supported.", type));
  }
  require_off(step, "add_prefix_space");
  if (flag(step, "use_regex", true)) {
    file.splits.push_back({byte_level_pattern, false});
  }
  return true;
}

void parse_pre_tokenizers(const json& root, tokenizer_file& file) {
  if (root.is_null()) {
    fail("there is no pre-tokenizer; only byte-level tokenizers are supported.");
  }
  bool byte_level = false;
  for_each_step(root, "pretokenizers", [&](const json& step) {
    if (byte_level) {
      fail("a pre-tokenizer after ByteLevel is not supported.");
    }
    byte_level = parse_pre_tokenizer(step, file);
  });
  if (!byte_level) {
    fail("the last pre-tokenizer is not ByteLevel; only byte-level tokenizers are supported.");
  }
}

void parse_template(const json& processor, tokenizer_file& file) {
  bool behind_text = false;
  for (const json& item : processor.at("single")) {
    if (item.contains("Sequence")) {
      if (behind_text) {
        fail("a TemplateProcessing that repeats the text is not supported.");
      }
      behind_text = true;
      continue;
    }
    const auto name = item.at("SpecialToken").at("id").get<std::string>();
    for (const json& id : processor.at("special_tokens").at(name).at("ids")) {
      (behind_text ? file.after : file.before).push_back(as_id(id));
    }
  }
  if (!behind_text) {
    fail("the TemplateProcessing lacks the text itself.");
  }
}

void parse_post_processors(const json& root, tokenizer_file& file) {
  if (root.is_null()) {
    return;
  }
  bool templated = false;
  for_each_step(root, "processors", [&](const json& step) {
    const std::string type = type_of(step);
    if (type == "TemplateProcessing" && !templated) {
      parse_template(step, file);
      templated = true;
    } else if (type != "ByteLevel") {  // Which concerns offsets only.
      fail(fmt::format("the post-processor {} is not supported.", type));
    }
  });
}

std::pair<std::string, std::string> parse_merge(const json& entry) {
  if (entry.is_array() && entry.size() == 2) {
    return {entry[0].get<std::string>(), entry[1].get<std::string>()};
  }
  const auto text = entry.get<std::string>();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    fail(fmt::format("the merge \"{}\" is not a pair of tokens.", text));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void parse_model(const json& model, tokenizer_file& file) {
  // Files of old versions name no type.
  const json& type = value_of(model, "type");
  if (!type.is_null() && type != "BPE") {
    fail(fmt::format("the model {} is not supported, only BPE is.", type.get<std::string>()));
  }
  for (const char* const option : {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                   "byte_fallback", "ignore_merges"}) {
    require_off(model, option);
  }
  for (const auto& [token, id] : model.at("vocab").items()) {
    file.vocab.emplace_back(token, as_id(id));
  }
  for (const json& entry : model.at("merges")) {
    file.merges.push_back(parse_merge(entry));
  }
}

tokenizer_file parse(const json& root) {
  tokenizer_file file;
  require_off(root, "truncation");
  require_off(root, "padding");
  parse_model(root.at("model"), file);
  parse_normalizer(value_of(root, "normalizer"), file);
  parse_pre_tokenizers(value_of(root, "pre_tokenizer"), file);
  parse_post_processors(value_of(root, "post_processor"), file);
  parse_added_tokens(value_of(root, "added_tokens"), file);
  const json& decoder = value_of(root, "decoder");
  if (!decoder.is_null() && type_of(decoder) != "ByteLevel") {
    fail(fmt::format("the decoder {} is not supported, only ByteLevel is.", type_of(decoder)));
  }
  return file;
}

}  // namespace

tokenizer_file parse_tokenizer_file(std::string_view text) {
  try {
    return parse(json::parse(text));
  } catch (const json::parse_error& e) {
    fail(fmt::format("it is not valid JSON (fault at byte {}).", e.byte));
  } catch (const json::exception& e) {
    fail(fmt::format("it is not what a tokenizer's file should be: {}.", e.what()));
  }
}

}  // namespace eldr::gpu
