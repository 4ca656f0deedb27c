// SPDX-License-Identifier: Apache-2.0
// A file for asynchronous I/O, opened without the page cache where the file system allows it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "base/file_descriptor.h"

namespace spillway {

// Whose data a file holds; the I/O queue is shared fairly among these users (async_io.h).
enum class IoUser : uint8_t { kWeights, kKv, kActivations };
inline constexpr size_t kIoUserCount = 3;

// Owns a descriptor. Thread-safe. Throws kInvalidArgument for a path that does not exist or is no
// regular file, and kIo for other errors of the system.
class IoFile {
 public:
  enum class Access { kRead, kReadWrite };

  // Opens a file that exists; directories, devices and FIFOs are refused.
  explicit IoFile(const std::filesystem::path& path, Access access = Access::kRead,
                  IoUser user = IoUser::kWeights);
  // Takes over a descriptor and makes it direct where that works; `path` is for messages.
  IoFile(FileDescriptor fd, const std::filesystem::path& path, IoUser user = IoUser::kWeights);
  IoFile(const IoFile&) = delete;
  IoFile& operator=(const IoFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return fd_.get(); }
  IoUser user() const { return user_; }
  // The current size.
  uint64_t size() const;

  // Whether I/O bypasses the page cache, as far as is known yet.
  bool is_direct() const { return direct_.load(std::memory_order_relaxed); }
  // Switches to the page cache, after the file system has refused a direct transfer.
  void stop_direct() const;

 private:
  void start_direct();

  std::filesystem::path path_;
  IoUser user_;
  FileDescriptor fd_;
  mutable std::atomic<bool> direct_{false};
};

}  // namespace spillway
