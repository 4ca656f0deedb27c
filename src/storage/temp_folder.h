// SPDX-License-Identifier: Apache-2.0
// A folder for one test, removed with everything in it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "storage/file_writer.h"

namespace spillway {

class TempFolder {
 public:
  explicit TempFolder(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string pattern = parent / "spillway-test-XXXXXX";
    SPW_CHECK(::mkdtemp(pattern.data()) != nullptr, kIo, "no temporary folder in {}",
              parent.native());
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  std::filesystem::path write(std::string_view name, std::string_view text) const {
    return write(name, std::as_bytes(std::span(text)));
  }
  std::filesystem::path write(std::string_view name, std::span<const std::byte> bytes) const {
    FileWriter file(path_ / name);
    file.write(bytes);
    file.commit();
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// The message of the Error that `fn` throws; "no error" where it throws none.
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
