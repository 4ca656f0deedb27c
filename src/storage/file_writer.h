// SPDX-License-Identifier: Apache-2.0
// Writes a file under a temporary name and renames it when it is whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace spillway {

// Owns a descriptor and the temporary file, which the destructor removes unless commit() was
// called. Not thread-safe; throws kIo.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  // Flushes to disk and renames to the path given to the constructor.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
};

}  // namespace spillway
