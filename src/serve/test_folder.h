// SPDX-License-Identifier: Apache-2.0
// A temporary folder for this folder's tests.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "base/test_scoped_folder.h"

namespace spillway {

// It is in memory if possible: there fsync, which these tests call often, costs nothing.
class TestFolder : public ScopedFolder {
 public:
  TestFolder()
      : ScopedFolder(std::filesystem::is_directory("/dev/shm")
                         ? "/dev/shm"
                         : std::filesystem::temp_directory_path()) {}

  std::filesystem::path write(std::string_view name, std::string_view text) const {
    std::ofstream(path() / name, std::ios::binary) << text;
    return path() / name;
  }
  std::string read(std::string_view name) const {
    std::ifstream file(path() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

}  // namespace spillway
