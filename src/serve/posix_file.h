// SPDX-License-Identifier: Apache-2.0
// A file with reads and writes that are whole or an error; what batch files are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace spillway {

// Owns a descriptor; move-only, not thread-safe. Throws kIo naming the path and the system's
// reason, which for a full disk says that the work can go on later. All calls are those of
// storage/io_calls.h, so that tests can make each of them fail.
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
  // May have written part of it when it throws.
  void write(uint64_t offset, std::string_view text);
  void truncate(uint64_t bytes);
  // Until the disk has it.
  void sync();

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
};

// Replaces what is at `to`, and syncs its folder. Throws kIo; only where that was about syncing is
// the file at `to` the new one.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

// Until the disk has the folder's names: after a file in it was made or renamed. Where folders
// cannot be synced, nothing happens; a disk that fails or is full is kIo: the name may not last.
void sync_folder_of(const std::filesystem::path& path);

}  // namespace spillway
