// SPDX-License-Identifier: Apache-2.0
// Writes a file that gets its name only once it is complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/file_descriptor.h"

namespace spillway {

// Owns a descriptor and an unfinished file, which the destructor removes unless commit() was
// called. A process that is killed leaves nothing if the file system has unnamed files; if not, the
// next FileWriter in that folder removes what it left. Not thread-safe. Throws kIo, and
// kInvalidArgument if the path exists and is no regular file.
class FileWriter {
 public:
  // If `path` is a symbolic link, the file it points to is replaced and the link stays.
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  // Writes all bytes to the disk. This can take long; a commit() after it does not.
  void sync();
  // Syncs, and replaces the file at the path given to the constructor.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path folder_;
  std::filesystem::path temporary_;  // empty while the file has no name
  FileDescriptor fd_;
};

}  // namespace spillway
