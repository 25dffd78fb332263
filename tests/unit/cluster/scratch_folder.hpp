#pragma once
/// A folder of a test's own, gone when the test is over.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace eldr::cluster {

class scratch_folder {
 public:
  scratch_folder() : path_(testing::TempDir() + "eldr-test-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) {
      throw std::runtime_error("cannot create " + path_);
    }
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::filesystem::path operator/(const std::string& name) const {
    return std::filesystem::path(path_) / name;
  }
  std::filesystem::path path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace eldr::cluster
