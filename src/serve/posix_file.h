// SPDX-License-Identifier: Apache-2.0
// A file whose reads and writes are complete or fail, for the files of batch jobs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace spillway {

// Owns a descriptor; move-only, not thread-safe. Throws kIo naming the path and the system's
// reason; for a full disk the message says how to go on. All calls go through storage/io_calls.h,
// so that tests can make each of them fail.
class PosixFile {
 public:
  // `flags` are those of open(2); O_CLOEXEC is added. A new file has mode 0644.
  PosixFile(const std::filesystem::path& path, int flags);

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return fd_.get(); }
  uint64_t size() const;
  // Reads `bytes`, fewer only at the end of the file; returns how many.
  size_t read(uint64_t offset, char* out, size_t bytes) const;
  // Reads exactly `bytes`; throws kIo if the file ends before.
  std::string read_exact(uint64_t offset, size_t bytes) const;
  // May have written a part when it throws.
  void write(uint64_t offset, std::string_view text);
  void truncate(uint64_t bytes);
  // Returns once the data is on the disk.
  void sync();

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
};

// Replaces the file `to`, and syncs its folder. Throws kIo; if only the sync failed, `to` is
// already the new file.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

// Returns once the folder's entries are on the disk, after a file in it was created or renamed.
// Does nothing if the folder cannot be synced; throws kIo if the disk fails or is full, in which
// case the file's name may be lost.
void sync_folder_of(const std::filesystem::path& path);

}  // namespace spillway
