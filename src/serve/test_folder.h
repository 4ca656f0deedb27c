// SPDX-License-Identifier: Apache-2.0
// For the tests of this folder: a place for files, and what a call complains about.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "base/error.h"

namespace spillway {

// A folder of one test, removed with everything in it.
class TestFolder {
 public:
  TestFolder() {
    // In memory where that is possible: there fsync, which these tests call often, costs nothing.
    const std::filesystem::path memory = "/dev/shm";
    std::string pattern =
        (std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path()) /
        "spillway-serve-XXXXXX";
    SPW_CHECK(::mkdtemp(pattern.data()) != nullptr, kIo, "no temporary folder");
    path_ = pattern;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  std::filesystem::path write(std::string_view name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  std::string read(std::string_view name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path path_;
};

// The message of the Error that `fn` throws; "no error" where it throws none.
template <class Fn>
std::string complaint(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace spillway
