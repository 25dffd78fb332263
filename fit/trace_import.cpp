#include "fit/trace_import.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "fit/base64.hpp"
#include "fit/choices.hpp"
#include "fit/error.hpp"
#include "fit/npy.hpp"
#include "fit/trace.hpp"

namespace eldr::fit {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// One response, its ids not yet checked.
struct response {
  std::string id;
  std::string label;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t rows = 0;
  std::uint32_t layers = 0;
  std::uint32_t experts_per_token = 0;
  std::vector<std::uint16_t> choices;
};

/// The value under a path of keys; null when a step is missing.
const json& at_path(const json& root, std::initializer_list<const char*> keys) {
  static const json null;  // Immutable.
  const json* value = &root;
  for (const char* key : keys) {
    if (!value->is_object() || !value->contains(key)) {
      return null;
    }
    value = &value->at(key);
  }
  return *value;
}

/// The response's only choice, or the response itself when it has no list of them.
const json& only_choice(const json& root) {
  const json& choices = at_path(root, {"choices"});
  if (!choices.is_array()) {
    return root;
  }
  if (choices.size() != 1) {
    throw fit_error("the response must have exactly one choice (n = 1)");
  }
  return choices[0];
}

/// The first of the values that is there.
const json& first_of(std::initializer_list<std::reference_wrapper<const json>> values) {
  const auto found =
      std::ranges::find_if(values, [](const json& value) { return !value.is_null(); });
  return found == values.end() ? values.begin()->get() : found->get();
}

/// A number of tokens: a number, or the length of a list of ids.
std::uint64_t token_count(const json& value, const char* what) {
  if (value.is_array()) {
    return value.size();
  }
  if (!value.is_number_unsigned()) {
    throw fit_error(std::string("the number of ") + what +
                    " tokens is missing (usage, meta_info or token ids)");
  }
  return value.get<std::uint64_t>();
}

std::vector<std::byte> decode_text(const json& value) {
  const auto bytes =
      value.is_string() ? decode_base64(value.get_ref<const std::string&>()) : std::nullopt;
  if (!bytes) {
    throw fit_error(
        "routed_experts is missing or no Base64 text; ask the engine to return routed experts");
  }
  return *bytes;
}

template <typename T>
std::vector<std::uint16_t> narrow(std::span<const std::byte> bytes) {
  std::vector<std::uint16_t> ids(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    T id;
    std::memcpy(&id, bytes.data() + i * sizeof(T), sizeof(T));
    if (id < T{0} || static_cast<std::uint32_t>(id) > std::numeric_limits<std::uint16_t>::max()) {
      throw fit_error("expert id " + std::to_string(id) + " is out of range");
    }
    ids[i] = static_cast<std::uint16_t>(id);
  }
  return ids;
}

std::vector<std::uint16_t> narrow(npy_type type, std::span<const std::byte> bytes) {
  switch (type) {
    case npy_type::uint8:
      return narrow<std::uint8_t>(bytes);
    case npy_type::uint16:
      return narrow<std::uint16_t>(bytes);
    case npy_type::int32:
      return narrow<std::int32_t>(bytes);
    case npy_type::float32:
      break;
  }
  throw fit_error("routed_experts must hold whole numbers");
}

void set_shape(response& result, const std::vector<std::uint64_t>& shape) {
  constexpr std::uint64_t extent_max = 65'536;
  if (shape.size() != 3 || shape[1] == 0 || shape[2] == 0 || shape[1] > extent_max ||
      shape[2] > extent_max) {
    throw fit_error("routed_experts must have the shape [tokens - 1][layers][k]");
  }
  result.rows = shape[0];
  result.layers = static_cast<std::uint32_t>(shape[1]);
  result.experts_per_token = static_cast<std::uint32_t>(shape[2]);
}

/// {data, shape, start?, dtype?}: the width of an id follows from the sizes.
void read_object(const json& value, response& result) {
  const json& start = at_path(value, {"start"});
  if (!start.is_null() && start != 0) {
    throw fit_error(
        "routed_experts starts after the first prompt token; record the prompt's rows too");
  }
  const json& shape = at_path(value, {"shape"});
  if (!shape.is_array() || shape.size() != 3 ||
      !std::ranges::all_of(shape, [](const json& n) { return n.is_number_unsigned(); })) {
    throw fit_error("routed_experts must have the shape [tokens - 1][layers][k]");
  }
  set_shape(result, shape.get<std::vector<std::uint64_t>>());
  const auto bytes = decode_text(at_path(value, {"data"}));
  const std::uint64_t row_ids = std::uint64_t{result.layers} * result.experts_per_token;
  for (const npy_type type : {npy_type::uint8, npy_type::uint16, npy_type::int32}) {
    const std::uint64_t row_bytes = row_ids * item_bytes(type);
    if (bytes.size() % row_bytes == 0 && bytes.size() / row_bytes == result.rows) {
      result.choices = narrow(type, bytes);
      return;
    }
  }
  throw fit_error("routed_experts has " + std::to_string(bytes.size()) +
                  " bytes, which do not match its shape");
}

void read_vllm(const json& root, response& result) {
  const json& choice = only_choice(root);
  const json& routed =
      first_of({at_path(choice, {"routed_experts"}), at_path(root, {"routed_experts"})});
  if (routed.is_object()) {
    read_object(routed, result);
    return;
  }
  const npy_array array = npy_array::from_bytes(decode_text(routed), "routed_experts");
  set_shape(result, array.shape());
  result.choices = narrow(array.type(), array.data());
}

void read_sglang(const json& root, const import_options& options, response& result) {
  const json& routed = first_of({at_path(root, {"meta_info", "routed_experts"}),
                                 at_path(only_choice(root), {"sgl_ext", "routed_experts"})});
  const auto bytes = decode_text(routed);
  const std::uint64_t row_bytes =
      std::uint64_t{options.layers} * options.experts_per_token * sizeof(std::int32_t);
  if (bytes.size() % row_bytes != 0) {
    throw fit_error("routed_experts has " + std::to_string(bytes.size()) +
                    " bytes, no whole number of rows of the given layers and experts per token");
  }
  set_shape(result, {bytes.size() / row_bytes, options.layers, options.experts_per_token});
  result.choices = narrow<std::int32_t>(bytes);
}

void check_row_count(const json& root, response& result) {
  const json& choice = only_choice(root);
  result.prompt_tokens = token_count(
      first_of({at_path(root, {"usage", "prompt_tokens"}),
                at_path(root, {"meta_info", "prompt_tokens"}), at_path(root, {"prompt_token_ids"}),
                at_path(choice, {"prompt_token_ids"}), at_path(root, {"prompt_tokens"})}),
      "prompt");
  const std::uint64_t completion_tokens =
      token_count(first_of({at_path(root, {"usage", "completion_tokens"}),
                            at_path(root, {"meta_info", "completion_tokens"}),
                            at_path(choice, {"token_ids"}), at_path(root, {"completion_tokens"})}),
                  "completion");
  const std::uint64_t tokens = result.prompt_tokens + completion_tokens;
  if (result.prompt_tokens == 0 || completion_tokens == 0 || result.rows != tokens - 1) {
    throw fit_error("routed_experts has " + std::to_string(result.rows) + " rows where " +
                    std::to_string(result.prompt_tokens) + " prompt and " +
                    std::to_string(completion_tokens) +
                    " completion tokens ask for one less than their sum");
  }
}

response parse_response(const std::string& line, std::uint64_t number,
                        const import_options& options) {
  const json root = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    throw fit_error("this is no JSON object");
  }
  response result;
  const json& id = first_of({at_path(root, {"id"}), at_path(root, {"meta_info", "id"})});
  result.id = id.is_string() ? id.get<std::string>() : "response-" + std::to_string(number);
  const json& label = at_path(root, {"label"});
  result.label = label.is_string() ? label.get<std::string>() : "";
  options.format == response_format::vllm ? read_vllm(root, result)
                                          : read_sglang(root, options, result);
  check_row_count(root, result);
  return result;
}

/// Calls take(response) for every line; faults are told with the line's number.
void for_each_response(const fs::path& file, const import_options& options,
                       const std::function<void(const response&)>& take) {
  std::ifstream stream(file);
  if (!stream) {
    throw fit_error("Cannot read " + file.string() + "; give a file of JSON responses.");
  }
  std::string line;
  for (std::uint64_t number = 1; std::getline(stream, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    try {
      take(parse_response(line, number, options));
    } catch (const fit_error& error) {
      std::string reason = error.what();
      if (reason.ends_with('.')) {
        reason.pop_back();
      }
      throw fit_error(file.string() + ", line " + std::to_string(number) + ": " + reason + ".");
    }
  }
}

/// With one expert per token a row of zeros is well-formed, but with several layers it is far more
/// likely that the engine recorded nothing.
void check_recorded(const response& one) {
  const std::size_t row_ids = std::size_t{one.layers} * one.experts_per_token;
  for (std::size_t row = 0; row_ids > 1 && row < one.rows; ++row) {
    const auto ids = std::span(one.choices).subspan(row * row_ids, row_ids);
    if (std::ranges::all_of(ids, [](std::uint16_t id) { return id == 0; })) {
      throw fit_error("row " + std::to_string(row) + " is all zero, so its token was not recorded");
    }
  }
}

std::uint32_t find_experts(const fs::path& file, const import_options& options) {
  std::uint32_t highest = 0;
  for_each_response(file, options, [&highest](const response& one) {
    for (const std::uint16_t id : one.choices) {
      highest = std::max<std::uint32_t>(highest, id);
    }
  });
  return highest + 1;
}

/// A folder that takes its final name only when it is complete.
class pending_folder {
 public:
  explicit pending_folder(const fs::path& folder)
      : folder_(folder), pending_(folder.string() + ".partial-" + std::to_string(::getpid())) {
    std::error_code ignored;
    if (fs::exists(folder, ignored) && !fs::is_empty(folder, ignored)) {
      throw fit_error(folder.string() + " is not empty; give another folder or remove it.");
    }
  }
  pending_folder(const pending_folder&) = delete;
  pending_folder& operator=(const pending_folder&) = delete;
  ~pending_folder() {
    std::error_code ignored;
    fs::remove_all(pending_, ignored);
  }

  const fs::path& path() const noexcept { return pending_; }

  void complete() {
    std::error_code failure;
    fs::rename(pending_, folder_, failure);
    if (failure) {
      throw fit_error("Cannot write " + folder_.string() + ": " + failure.message() + ".");
    }
  }

 private:
  fs::path folder_;
  fs::path pending_;
};

}  // namespace

import_summary import_trace(const fs::path& responses, const fs::path& folder,
                            const import_options& options) {
  if (options.format == response_format::sglang &&
      (options.layers == 0 || options.experts_per_token == 0)) {
    throw fit_error(
        "SGLang's responses do not tell the shape; give the number of layers and of experts per "
        "token.");
  }
  pending_folder pending(folder);
  import_summary summary;
  summary.experts = options.experts != 0 ? options.experts : find_experts(responses, options);
  std::optional<trace_writer> writer;
  std::uint32_t layers = 0;
  std::uint32_t experts_per_token = 0;
  for_each_response(responses, options, [&](const response& one) {
    check_recorded(one);
    if (!writer) {
      layers = one.layers;
      experts_per_token = one.experts_per_token;
      const char* source = options.format == response_format::vllm ? "vLLM" : "SGLang";
      writer.emplace(pending.path(),
                     trace_writer_options{.layers = layers,
                                          .experts_per_token = experts_per_token,
                                          .properties = {.experts = summary.experts,
                                                         .block_tokens = options.block_tokens,
                                                         .model = options.model,
                                                         .source = source}});
    }
    if (one.layers != layers || one.experts_per_token != experts_per_token) {
      throw fit_error("the shape differs from that of the first response");
    }
    writer->add({.id = one.id,
                 .label = one.label,
                 .prefill_rows = one.prompt_tokens,
                 .choices = one.choices});
    ++summary.requests;
    summary.rows += one.rows;
  });
  if (!writer) {
    throw fit_error(responses.string() + " holds no response.");
  }
  writer->finish();
  pending.complete();
  return summary;
}

}  // namespace eldr::fit
