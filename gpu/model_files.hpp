#pragma once
/// Where a model's bytes are: a folder in Hugging Face's layout, or the default model inside this
/// library.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace eldr::gpu {

/// Name of the model inside the library.
inline constexpr std::string_view embedded_model_name = "tiny-moe";

/// The three files of a model, read-only, valid as long as this object. Files of a folder are
/// mapped: a file that is cut short while it is mapped kills the process (SIGBUS), so replace model
/// files by renaming new ones into place.
class model_files {
 public:
  virtual ~model_files() = default;
  /// For people: the folder's path or the embedded model's name.
  virtual const std::string& name() const noexcept = 0;
  virtual std::string_view config_json() const noexcept = 0;
  virtual std::string_view tokenizer_json() const noexcept = 0;
  /// model.safetensors; the first byte is 64-byte aligned.
  virtual std::span<const std::byte> safetensors() const noexcept = 0;
};

/// "" or "tiny-moe": the embedded model; anything else: the path of a folder with config.json,
/// model.safetensors and tokenizer.json ("./tiny-moe" for a folder of that name). Throws
/// std::runtime_error that names the missing or unreadable file.
std::shared_ptr<const model_files> open_model(const std::string& name);

}  // namespace eldr::gpu
