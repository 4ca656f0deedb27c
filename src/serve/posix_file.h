// SPDX-License-Identifier: Apache-2.0
// A descriptor with reads and writes that are whole or an error; what batch files are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace spillway {

// Owns a descriptor; move-only, not thread-safe. Throws kIo naming the path and the system's
// reason, which for a full disk says that the work can go on later.
class PosixFile {
 public:
  // `flags` as open(2) takes them; O_CLOEXEC is added. A new file has mode 0644.
  PosixFile(const std::filesystem::path& path, int flags);

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return fd_.get(); }
  uint64_t size() const;
  // At most `bytes`, fewer only at the end of the file.
  size_t read(uint64_t offset, char* out, size_t bytes) const;
  // All of `bytes`, or kIo when the file ends before.
  std::string read_exact(uint64_t offset, size_t bytes) const;
  // May have written part of `bytes` when it throws.
  void write(uint64_t offset, std::string_view bytes);
  void truncate(uint64_t bytes);
  // Until the disk has it.
  void sync();

 private:
  [[noreturn]] void fail_io(const char* doing, int error) const;

  std::filesystem::path path_;
  FileDescriptor fd_;
};

// Until the disk has the folder's names: after a file in it was made or renamed. Where a folder
// cannot be synced, nothing happens.
void sync_folder_of(const std::filesystem::path& path);

}  // namespace spillway
