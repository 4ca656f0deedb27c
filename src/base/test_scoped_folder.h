// SPDX-License-Identifier: Apache-2.0
// For tests: a folder that is removed with all its content, and the error message that a call
// gives.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"

namespace spillway {

class ScopedFolder {
 public:
  explicit ScopedFolder(const std::filesystem::path& parent) {
    std::string pattern = parent / "spillway-test-XXXXXX";
    SPW_CHECK(::mkdtemp(pattern.data()) != nullptr, kIo, "no temporary folder in {}",
              parent.native());
    path_ = pattern;
  }
  ~ScopedFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScopedFolder(const ScopedFolder&) = delete;
  ScopedFolder& operator=(const ScopedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// Returns the message of the Error that `fn` throws, or "no error" if it throws none.
template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace spillway
