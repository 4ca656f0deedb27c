// SPDX-License-Identifier: Apache-2.0
#include "storage/io_calls.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "base/fault_points.h"

namespace spillway {
namespace {

constexpr size_t kMost = size_t{1} << 30;  // below Linux's limit of 2 GiB for a transfer

int64_t answer(const char* point, int64_t result) {
  return with_fault(point, result < 0 ? -errno : result);
}

}  // namespace

FileDescriptor open_call(const std::filesystem::path& path, int flags, int mode) {
  if (const int error = injected_error("io.open")) return FileDescriptor(-error);
  const int fd = ::open(path.c_str(), flags, mode);
  return FileDescriptor(fd < 0 ? -errno : fd);
}

int64_t read_call(int fd, std::span<std::byte> out, uint64_t offset) {
  return answer("io.read",
                ::pread(fd, out.data(), std::min(out.size(), kMost), static_cast<off_t>(offset)));
}

int64_t write_call(int fd, std::span<const std::byte> bytes, uint64_t offset) {
  return answer("io.write", ::pwrite(fd, bytes.data(), std::min(bytes.size(), kMost),
                                     static_cast<off_t>(offset)));
}

int64_t append_call(int fd, std::span<const std::byte> bytes) {
  // The fault is injected before the call: if it shortened the result of a complete write, the
  // caller would write the rest twice.
  size_t length = std::min(bytes.size(), kMost);
  const int64_t allowed = with_fault("io.write", static_cast<int64_t>(length));
  if (allowed < 0) return allowed;
  length = static_cast<size_t>(allowed);
  const ssize_t n = ::write(fd, bytes.data(), length);
  return n < 0 ? -errno : n;
}

int64_t allocate_call(int fd, uint64_t bytes) {
  if (const int error = injected_error("io.allocate")) return -error;
  return -::posix_fallocate(fd, 0, static_cast<off_t>(bytes));  // it returns the error code
}

int64_t truncate_call(int fd, uint64_t bytes) {
  if (const int error = injected_error("io.truncate")) return -error;
  return ::ftruncate(fd, static_cast<off_t>(bytes)) < 0 ? -errno : 0;
}

int64_t punch_call(int fd, uint64_t offset, uint64_t bytes) {
  if (const int error = injected_error("io.punch")) return -error;
  const int result = ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                 static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return result < 0 ? -errno : 0;
}

int64_t sync_call(int fd) { return answer("io.sync", ::fsync(fd)); }

int64_t rename_call(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (const int error = injected_error("io.rename")) return -error;
  return std::rename(from.c_str(), to.c_str()) < 0 ? -errno : 0;
}

int64_t link_call(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (const int error = injected_error("io.link")) return -error;
  const int result = ::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW);
  return result < 0 ? -errno : 0;
}

std::string error_text(int64_t error) {
  return std::generic_category().message(static_cast<int>(std::abs(error)));
}

}  // namespace spillway
