#include "fit/trace.hpp"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "fit/choices.hpp"
#include "fit/error.hpp"

namespace eldr::fit {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* choices_name = "routed_experts.npy";
constexpr const char* index_name = "requests.jsonl";
constexpr const char* probabilities_name = "gate_probabilities.npy";
constexpr const char* logits_name = "logits.npy";
constexpr const char* properties_name = "trace.json";
constexpr std::size_t requests_max = 1'000'000;
constexpr std::uint64_t layers_max = 1024;
constexpr std::uint64_t experts_per_token_max = 256;

[[noreturn]] void refuse_line(const fs::path& file, std::size_t line, const std::string& reason) {
  throw fit_error(file.string() + ", line " + std::to_string(line) + ": " + reason + ".");
}

std::uint64_t read_count(const json& object, const char* key, const fs::path& file,
                         std::size_t line) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) {
    refuse_line(file, line, std::string("'") + key + "' must be a whole number, 0 or more");
  }
  return found->get<std::uint64_t>();
}

/// A text value; nothing when the key is absent or null.
std::optional<std::string> read_text(const json& object, const char* key, const fs::path& file,
                                     std::size_t line) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return std::nullopt;
  }
  if (found->is_number_integer()) {
    return found->dump();
  }
  if (!found->is_string()) {
    refuse_line(file, line, std::string("'") + key + "' must be text");
  }
  return found->get<std::string>();
}

trace_request read_request(const std::string& text, const fs::path& file, std::size_t line) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    refuse_line(file, line, "this is no JSON object");
  }
  trace_request request;
  const auto id = read_text(object, "id", file, line);
  if (!id) {
    refuse_line(file, line, "'id' is missing");
  }
  request.id = *id;
  request.label = read_text(object, "label", file, line).value_or("");
  request.first_row = read_count(object, "first_row", file, line);
  request.rows = read_count(object, "rows", file, line);
  request.prefill_rows = read_count(object, "prefill_rows", file, line);
  if (request.rows == 0 || request.prefill_rows > request.rows) {
    refuse_line(file, line,
                "request '" + request.id + "' needs at least one row and no more prefill_rows (" +
                    std::to_string(request.prefill_rows) + ") than rows (" +
                    std::to_string(request.rows) + ")");
  }
  return request;
}

std::vector<trace_request> read_index(const fs::path& file) {
  std::ifstream stream(file);
  if (!stream) {
    throw fit_error("Cannot read " + file.string() +
                    "; a trace is a folder with requests.jsonl and routed_experts.npy.");
  }
  std::vector<trace_request> requests;
  std::unordered_set<std::string> ids;
  std::string text;
  for (std::size_t line = 1; std::getline(stream, text); ++line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    requests.push_back(read_request(text, file, line));
    if (!ids.insert(requests.back().id).second) {
      refuse_line(file, line, "the id '" + requests.back().id + "' was used before");
    }
    if (requests.size() > requests_max) {
      refuse_line(file, line, "a trace holds at most 1,000,000 requests");
    }
  }
  if (requests.empty()) {
    throw fit_error("The trace is empty: " + file.string() + " names no request.");
  }
  return requests;
}

void check_rows(const std::vector<trace_request>& requests, std::uint64_t rows,
                const fs::path& folder) {
  std::vector<const trace_request*> ordered;
  for (const trace_request& request : requests) {
    if (request.rows > rows || request.first_row > rows - request.rows) {
      throw fit_error("Request '" + request.id + "' of " + folder.string() +
                      " has rows past the end of routed_experts.npy, which has " +
                      std::to_string(rows) + "; the two files are not of one recording.");
    }
    ordered.push_back(&request);
  }
  std::ranges::sort(ordered, {}, &trace_request::first_row);
  for (std::size_t i = 1; i < ordered.size(); ++i) {
    if (ordered[i - 1]->first_row + ordered[i - 1]->rows > ordered[i]->first_row) {
      throw fit_error("Requests '" + ordered[i - 1]->id + "' and '" + ordered[i]->id + "' of " +
                      folder.string() + " share rows of routed_experts.npy; correct first_row.");
    }
  }
}

std::uint32_t read_small(const json& object, const char* key, const fs::path& file) {
  const auto found = object.find(key);
  if (found == object.end()) {
    return 0;
  }
  const auto value = found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
  if (value == 0 || value > 65'536) {
    throw fit_error("'" + std::string(key) + "' in " + file.string() +
                    " must be a whole number from 1 to 65536.");
  }
  return static_cast<std::uint32_t>(value);
}

trace_properties read_properties(const fs::path& file) {
  std::ifstream stream(file);
  if (!stream) {
    return {};
  }
  const json object = json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    throw fit_error(file.string() + " is no JSON object; correct it or remove it.");
  }
  return {.experts = read_small(object, "experts", file),
          .block_tokens = read_small(object, "block_tokens", file),
          .model = read_text(object, "model", file, 1).value_or(""),
          .source = read_text(object, "source", file, 1).value_or("")};
}

std::optional<npy_array> open_gate_values(const fs::path& file, std::uint64_t rows,
                                          std::uint64_t layers) {
  if (!fs::exists(file)) {
    return std::nullopt;
  }
  npy_array array = npy_array::open(file);
  const auto& shape = array.shape();
  if (array.type() != npy_type::float32 || shape.size() != 3 || shape[0] != rows ||
      shape[1] != layers || shape[2] == 0) {
    throw fit_error(file.string() + " must be float32 [rows][layers][k or experts] with the " +
                    "rows and layers of routed_experts.npy; correct it or remove it.");
  }
  return array;
}

npy_type choice_type(std::uint32_t experts) {
  return experts <= 256 ? npy_type::uint8 : npy_type::uint16;
}

std::span<const std::byte> bytes_of(std::span<const float> values) {
  return as_bytes(values);
}

/// The folder, made if needed, once it is clear that no trace would be overwritten.
fs::path prepare_folder(const fs::path& folder, const trace_writer_options& options) {
  const std::uint32_t experts = options.properties.experts;
  if (options.layers == 0 || options.layers > layers_max || options.experts_per_token == 0 ||
      options.experts_per_token > experts_per_token_max || experts > 65'536 ||
      options.experts_per_token > experts) {
    throw fit_error("A trace needs 1 to 1024 layers and 1 to 256 experts per token out of at " +
                    std::string("most 65536."));
  }
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) {
    throw fit_error("Cannot create " + folder.string() + ": " + failure.message() + ".");
  }
  if (fs::exists(folder / choices_name) || fs::exists(folder / index_name)) {
    throw fit_error(folder.string() + " already holds a trace; give another folder or remove it.");
  }
  return folder;
}

}  // namespace

trace::trace(npy_array choices, std::vector<trace_request> requests)
    : choices_(std::move(choices)), requests_(std::move(requests)) {}

trace trace::open(const fs::path& folder) {
  auto requests = read_index(folder / index_name);
  trace result(npy_array::open(folder / choices_name), std::move(requests));
  const npy_array& choices = result.choices_;
  const auto& shape = choices.shape();
  const bool id_type = choices.type() == npy_type::uint8 || choices.type() == npy_type::uint16;
  if (!id_type || shape.size() != 3 || shape[1] == 0 || shape[1] > layers_max || shape[2] == 0 ||
      shape[2] > experts_per_token_max) {
    throw fit_error((folder / choices_name).string() +
                    " must be uint8 or uint16 [rows][layers][k] with 1 to 1024 layers and k from "
                    "1 to 256.");
  }
  result.layers_ = static_cast<std::uint32_t>(shape[1]);
  result.experts_per_token_ = static_cast<std::uint32_t>(shape[2]);
  check_rows(result.requests_, shape[0], folder);
  result.properties_ = read_properties(folder / properties_name);
  result.probabilities_ = open_gate_values(folder / probabilities_name, shape[0], shape[1]);
  result.logits_ = open_gate_values(folder / logits_name, shape[0], shape[1]);
  return result;
}

void trace::read_row(std::uint64_t row, std::span<std::uint16_t> out) const noexcept {
  const std::uint64_t first = row * layers_ * experts_per_token_;
  const bool wide = choices_.type() == npy_type::uint16;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = wide ? choices_.at<std::uint16_t>(first + i) : choices_.at<std::uint8_t>(first + i);
  }
}

std::uint32_t trace::experts_seen() const {
  std::vector<std::uint16_t> row(std::size_t{layers_} * experts_per_token_);
  std::uint32_t highest = 0;
  for (std::uint64_t i = 0; i < rows(); ++i) {
    read_row(i, row);
    highest = std::max<std::uint32_t>(highest, *std::ranges::max_element(row));
  }
  return highest + 1;
}

std::uint64_t trace::digest() const {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  const auto add = [&state](const void* data, std::size_t bytes) {
    XXH3_64bits_update(state.get(), data, bytes);
  };
  add(choices_.shape().data(), choices_.shape().size() * sizeof(std::uint64_t));
  add(choices_.data().data(), choices_.data().size());
  for (const trace_request& request : requests_) {
    // With the closing zeros no two lists of requests give the same bytes.
    add(request.id.c_str(), request.id.size() + 1);
    add(request.label.c_str(), request.label.size() + 1);
    const std::uint64_t rows[] = {request.first_row, request.rows, request.prefill_rows};
    add(rows, sizeof(rows));
  }
  return XXH3_64bits_digest(state.get());
}

trace_writer::trace_writer(const fs::path& folder, trace_writer_options options)
    : folder_(prepare_folder(folder, options)),
      options_(std::move(options)),
      choices_(folder_ / choices_name, choice_type(options_.properties.experts),
               {options_.layers, options_.experts_per_token}),
      index_(folder_ / index_name) {
  const std::vector<std::uint64_t> row{options_.layers, options_.experts_per_token};
  if (options_.gate_probabilities) {
    probabilities_.emplace(folder_ / probabilities_name, npy_type::float32, row);
  }
  if (options_.logits) {
    logits_.emplace(folder_ / logits_name, npy_type::float32, row);
  }
}

void trace_writer::check(const recorded_request& request) const {
  const std::size_t row_ids = std::size_t{options_.layers} * options_.experts_per_token;
  const std::size_t ids = request.choices.size();
  const auto refuse = [&request](const std::string& reason) {
    throw fit_error("Cannot record request '" + request.id + "': " + reason + ".");
  };
  if (ids == 0 || ids % row_ids != 0 || request.prefill_rows > ids / row_ids) {
    refuse("its choices are not at least prefill_rows rows of [layers][k]");
  }
  if (request.gate_probabilities.size() != (options_.gate_probabilities ? ids : 0) ||
      request.logits.size() != (options_.logits ? ids : 0)) {
    refuse("its gate values do not match its choices");
  }
  if (ids_.contains(request.id)) {
    refuse("the id was used before");
  }
  choice_checker checker(options_.properties.experts);
  if (const auto fault = find_choice_fault(request.choices, options_.layers,
                                           options_.experts_per_token, checker)) {
    refuse(*fault);
  }
}

void trace_writer::add(const recorded_request& request) {
  check(request);
  const std::uint64_t first_row = choices_.rows();
  if (choice_type(options_.properties.experts) == npy_type::uint16) {
    choices_.append(as_bytes(request.choices));
  } else {
    const std::vector<std::uint8_t> narrow(request.choices.begin(), request.choices.end());
    choices_.append(std::as_bytes(std::span(narrow)));
  }
  if (probabilities_) {
    probabilities_->append(bytes_of(request.gate_probabilities));
  }
  if (logits_) {
    logits_->append(bytes_of(request.logits));
  }
  json line = {{"id", request.id},
               {"first_row", first_row},
               {"rows", choices_.rows() - first_row},
               {"prefill_rows", request.prefill_rows}};
  if (!request.label.empty()) {
    line["label"] = request.label;
  }
  index_ << line.dump(-1, ' ', false, json::error_handler_t::replace) << '\n';
  ids_.insert(request.id);
}

void trace_writer::finish() {
  choices_.finish();
  if (probabilities_) {
    probabilities_->finish();
  }
  if (logits_) {
    logits_->finish();
  }
  json properties = {{"experts", options_.properties.experts}};
  if (options_.properties.block_tokens != 0) {
    properties["block_tokens"] = options_.properties.block_tokens;
  }
  for (const auto& [key, value] : {std::pair{"model", options_.properties.model},
                                   std::pair{"source", options_.properties.source}}) {
    if (!value.empty()) {
      properties[key] = value;
    }
  }
  index_.close();
  std::ofstream file(folder_ / properties_name);
  file << properties.dump(2, ' ', false, json::error_handler_t::replace) << '\n';
  file.close();
  if (!index_ || !file) {
    throw fit_error("Cannot write the trace to " + folder_.string() + "; is the disk full?");
  }
}

}  // namespace eldr::fit
