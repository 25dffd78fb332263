#include "fit/artifact.hpp"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>

#include "fit/artifact_codec.hpp"
#include "fit/error.hpp"

namespace eldr::fit {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little endian");

constexpr std::uint64_t file_bytes_max = std::uint64_t{1} << 30;

struct file_header {
  std::array<char, 8> magic = {'E', 'L', 'D', 'R', 'F', 'I', 'T', '\0'};
  std::uint32_t version = artifact_version;
  std::uint32_t zero = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t checksum = 0;
};
static_assert(sizeof(file_header) == 32);

[[noreturn]] void refuse(std::string_view name, const std::string& reason) {
  throw fit_error(std::string(name) + " is not a usable routing artifact: " + reason + ".");
}

file_header read_header(std::span<const std::byte> file, std::string_view name) {
  file_header header;
  if (file.size() < sizeof(header)) {
    refuse(name, "it is truncated");
  }
  std::memcpy(&header, file.data(), sizeof(header));
  if (header.magic != file_header{}.magic) {
    refuse(name, "it was not written by eldr fit");
  }
  if (header.version > artifact_version) {
    refuse(name, "it has format version " + std::to_string(header.version) +
                     " and this eldr reads up to version " + std::to_string(artifact_version) +
                     "; update eldr or fit again");
  }
  if (header.version == 0 || header.zero != 0) {
    refuse(name, "it is corrupt");
  }
  return header;
}

}  // namespace

std::vector<std::byte> serialize_artifact(const artifact& value) {
  const std::vector<std::byte> payload = encode_artifact(value);
  file_header header;
  header.payload_bytes = payload.size();
  header.checksum = XXH3_64bits(payload.data(), payload.size());
  std::vector<std::byte> file(sizeof(header) + payload.size());
  std::memcpy(file.data(), &header, sizeof(header));
  std::ranges::copy(payload, file.begin() + sizeof(header));
  return file;
}

artifact parse_artifact(std::span<const std::byte> file, std::string_view name) {
  const file_header header = read_header(file, name);
  const auto payload = file.subspan(sizeof(header));
  if (payload.size() < header.payload_bytes) {
    refuse(name, "it is truncated");
  }
  if (payload.size() > header.payload_bytes ||
      XXH3_64bits(payload.data(), payload.size()) != header.checksum) {
    refuse(name, "it is corrupt (its checksum does not match); copy it again or fit again");
  }
  try {
    return decode_artifact(payload);
  } catch (const fit_error& error) {
    refuse(name, error.what());
  }
}

void save_artifact(const artifact& value, const std::filesystem::path& path) {
  const std::vector<std::byte> file = serialize_artifact(value);
  const std::filesystem::path temporary = path.string() + "." + std::to_string(::getpid()) + ".tmp";
  std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
  stream.write(reinterpret_cast<const char*>(file.data()),
               static_cast<std::streamsize>(file.size()));
  stream.close();
  std::error_code failure;
  if (stream) {
    std::filesystem::rename(temporary, path, failure);
  }
  if (!stream || failure) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw fit_error("Cannot write " + path.string() +
                    "; is the folder there and writable, and the disk full?");
  }
}

artifact load_artifact(const std::filesystem::path& path) {
  std::error_code failure;
  const std::uint64_t bytes = std::filesystem::file_size(path, failure);
  std::ifstream stream(path, std::ios::binary);
  if (failure || !stream) {
    throw fit_error("Cannot read the routing artifact " + path.string() +
                    "; make one with eldr fit.");
  }
  if (bytes > file_bytes_max) {
    refuse(path.string(), "it is larger than 1 GiB");
  }
  std::vector<std::byte> file(bytes);
  stream.read(reinterpret_cast<char*>(file.data()), static_cast<std::streamsize>(bytes));
  file.resize(static_cast<std::size_t>(stream.gcount()));
  return parse_artifact(file, path.string());
}

void check_artifact_fits(const artifact& value, std::uint32_t layers, std::uint32_t experts,
                         std::uint32_t experts_per_token, std::uint32_t block_tokens) {
  std::string differences;
  const auto compare = [&differences](std::uint32_t artifact_has, std::uint32_t model_has,
                                      const char* what) {
    if (artifact_has != model_has) {
      differences += (differences.empty() ? "" : "; ") + std::string(what) + " " +
                     std::to_string(artifact_has) + " in the artifact and " +
                     std::to_string(model_has) + " here";
    }
  };
  compare(value.layers, layers, "layers");
  compare(value.experts, experts, "experts per layer");
  compare(value.experts_per_token, experts_per_token, "experts per token");
  compare(value.block_tokens, block_tokens, "KV block size");
  if (!differences.empty()) {
    throw fit_error("The routing artifact does not fit the model (" + differences +
                    "); fit one from a trace of this model.");
  }
}

}  // namespace eldr::fit
