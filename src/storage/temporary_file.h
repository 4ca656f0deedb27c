// SPDX-License-Identifier: Apache-2.0
// A file for this process alone, gone when it ends, however it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "storage/file.h"

namespace spillway {

// Has no name in its folder from the beginning (or, where the file system cannot, from right after
// its creation), so that not even a crash leaves it behind. Move-only.
class TemporaryFile {
 public:
  TemporaryFile() = default;
  // Takes `bytes` on the disk at once: a disk that is too full is known before the work begins.
  // Throws kIo, naming the folder and what is missing.
  TemporaryFile(const std::filesystem::path& folder, uint64_t bytes);
  TemporaryFile(TemporaryFile&& other) noexcept;
  TemporaryFile& operator=(TemporaryFile&& other) noexcept;
  ~TemporaryFile();

  // Opens the same file again, for this process only.
  std::filesystem::path path() const;
  uint64_t bytes() const { return bytes_; }
  bool is_open() const { return fd_ >= 0; }
  // Throws kIo.
  void write(uint64_t offset, const std::byte* data, size_t bytes);
  // Everything written is on the disk, and not in the page cache.
  void flush();

 private:
  int fd_ = -1;
  uint64_t bytes_ = 0;
};

}  // namespace spillway
