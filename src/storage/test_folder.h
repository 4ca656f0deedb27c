// SPDX-License-Identifier: Apache-2.0
// A folder for one test, removed with everything in it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/test_scoped_folder.h"
#include "storage/file_writer.h"

namespace spillway {

class TempFolder : public ScopedFolder {
 public:
  explicit TempFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path())
      : ScopedFolder(parent) {}

  std::filesystem::path write(std::string_view name, std::string_view text) const {
    return write(name, std::as_bytes(std::span(text)));
  }
  std::filesystem::path write(std::string_view name, std::span<const std::byte> bytes) const {
    FileWriter file(path() / name);
    file.write(bytes);
    file.commit();
    return path() / name;
  }
};

}  // namespace spillway
