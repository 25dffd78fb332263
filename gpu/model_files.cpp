#include "gpu/model_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

// Laid down by embedded_model.S.
extern "C" {
extern const std::byte eldr_embedded_config[], eldr_embedded_config_end[];
extern const std::byte eldr_embedded_tokenizer[], eldr_embedded_tokenizer_end[];
extern const std::byte eldr_embedded_safetensors[], eldr_embedded_safetensors_end[];
}

namespace eldr::gpu {

namespace {

using bytes = std::span<const std::byte>;

std::string_view as_text(bytes b) {
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}

class file_descriptor {
 public:
  explicit file_descriptor(const std::filesystem::path& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) {
      throw std::runtime_error(
          fmt::format("Model file {} cannot be opened: {}.", path.string(), std::strerror(errno)));
    }
  }
  ~file_descriptor() { ::close(fd_); }
  file_descriptor(const file_descriptor&) = delete;
  file_descriptor& operator=(const file_descriptor&) = delete;
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

/// A file's content in memory, read-only.
class mapped_file {
 public:
  explicit mapped_file(const std::filesystem::path& path) {
    const file_descriptor file(path);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) {
      throw std::runtime_error(
          fmt::format("Model file {} is empty or not a regular file.", path.string()));
    }
    const auto size = static_cast<std::size_t>(status.st_size);
    void* const address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
    if (address == MAP_FAILED) {
      throw std::runtime_error(
          fmt::format("Model file {} cannot be mapped: {}.", path.string(), std::strerror(errno)));
    }
    bytes_ = {static_cast<const std::byte*>(address), size};
  }
  ~mapped_file() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;
  bytes get() const noexcept { return bytes_; }

 private:
  bytes bytes_;
};

class folder_model final : public model_files {
 public:
  explicit folder_model(const std::string& folder)
      : name_(folder),
        config_(std::filesystem::path(folder) / "config.json"),
        tokenizer_(std::filesystem::path(folder) / "tokenizer.json"),
        safetensors_(std::filesystem::path(folder) / "model.safetensors") {}

  const std::string& name() const noexcept override { return name_; }
  std::string_view config_json() const noexcept override { return as_text(config_.get()); }
  std::string_view tokenizer_json() const noexcept override { return as_text(tokenizer_.get()); }
  bytes safetensors() const noexcept override { return safetensors_.get(); }

 private:
  std::string name_;
  mapped_file config_;
  mapped_file tokenizer_;
  mapped_file safetensors_;
};

class embedded_model final : public model_files {
 public:
  const std::string& name() const noexcept override { return name_; }
  std::string_view config_json() const noexcept override {
    return as_text({eldr_embedded_config, eldr_embedded_config_end});
  }
  std::string_view tokenizer_json() const noexcept override {
    return as_text({eldr_embedded_tokenizer, eldr_embedded_tokenizer_end});
  }
  bytes safetensors() const noexcept override {
    return {eldr_embedded_safetensors, eldr_embedded_safetensors_end};
  }

 private:
  std::string name_{embedded_model_name};
};

void require_folder(const std::string& name) {
  std::error_code ignored;
  const std::filesystem::path folder(name);
  if (!std::filesystem::exists(folder, ignored)) {
    throw std::runtime_error(fmt::format(
        "Model {} does not exist: give a folder with config.json, model.safetensors and "
        "tokenizer.json, or {} for the built-in model.",
        name, embedded_model_name));
  }
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw std::runtime_error(fmt::format(
        "Model {} is not a folder: give the folder that holds config.json and model.safetensors.",
        name));
  }
  if (!std::filesystem::exists(folder / "model.safetensors", ignored) &&
      std::filesystem::exists(folder / "model.safetensors.index.json", ignored)) {
    throw std::runtime_error(fmt::format(
        "Model {} has its weights in several shards, which is not supported: merge them into one "
        "model.safetensors.",
        name));
  }
}

}  // namespace

std::shared_ptr<const model_files> open_model(const std::string& name) {
  if (name.empty() || name == embedded_model_name) {
    return std::make_shared<embedded_model>();
  }
  require_folder(name);
  return std::make_shared<folder_model>(name);
}

}  // namespace eldr::gpu
