// SPDX-License-Identifier: Apache-2.0
// Writes a file that has its name only once it is whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/file_descriptor.h"

namespace spillway {

// Owns a descriptor and an unfinished file, which goes with the destructor unless commit() was
// called. A process that is killed leaves nothing where the file system has unnamed files;
// elsewhere, what it left goes with the next FileWriter in that folder. Not thread-safe. Throws
// kIo, and kInvalidArgument for a path that is there and no regular file.
class FileWriter {
 public:
  // A link at `path` stays: the file that it names is replaced.
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  // All bytes reach the disk; can take long, and commit() after it does not.
  void sync();
  // Syncs, and replaces what is at the path given to the constructor.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path folder_;
  std::filesystem::path temporary_;  // empty while it has no name
  FileDescriptor fd_;
};

}  // namespace spillway
