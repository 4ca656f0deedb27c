// SPDX-License-Identifier: Apache-2.0
#include "storage/temporary_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/printable.h"

namespace spillway {
namespace {

[[noreturn]] void fail_errno(const std::filesystem::path& folder, const char* what, int error) {
  fail(ErrorCode::kIo, "{}: {}: {}", printable_path(folder), what, std::strerror(error));
}

int open_nameless(const std::filesystem::path& folder) {
#ifdef O_TMPFILE
  const int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
#endif
  std::string name = (folder / "spillway-XXXXXX").string();
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named < 0) fail_errno(folder, "no file can be made there; choose another --disk-dir", errno);
  unlink(name.c_str());
  return named;
}

}  // namespace

TemporaryFile::TemporaryFile(const std::filesystem::path& folder, uint64_t bytes)
    : fd_(open_nameless(folder)), bytes_(bytes) {
  const int error = bytes == 0 ? 0 : posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
  if (error == 0) return;
  struct statvfs disk = {};
  const uint64_t free =
      fstatvfs(fd_, &disk) == 0 ? uint64_t{disk.f_bavail} * uint64_t{disk.f_frsize} : 0;
  close(std::exchange(fd_, -1));
  SPW_CHECK(error != ENOSPC && error != EFBIG, kIo,
            "{}: {} are needed there and {} are free; free some, or choose another --disk-dir",
            printable_path(folder), format_bytes(bytes), format_bytes(free));
  fail_errno(folder, "no room can be taken", error);
}

TemporaryFile::TemporaryFile(TemporaryFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}

TemporaryFile& TemporaryFile::operator=(TemporaryFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

TemporaryFile::~TemporaryFile() {
  if (fd_ >= 0) close(fd_);
}

std::filesystem::path TemporaryFile::path() const { return fmt::format("/proc/self/fd/{}", fd_); }

void TemporaryFile::write(uint64_t offset, const std::byte* data, size_t bytes) {
  SPW_ASSERT(offset + bytes <= bytes_);
  while (bytes > 0) {
    const ssize_t done = pwrite(fd_, data, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    SPW_CHECK(done > 0, kIo, "{} bytes at {} of a temporary file cannot be written: {}", bytes,
              offset, std::strerror(errno));
    data += done;
    bytes -= static_cast<size_t>(done);
    offset += static_cast<uint64_t>(done);
  }
}

void TemporaryFile::flush() {
  SPW_CHECK(fdatasync(fd_) == 0, kIo, "a temporary file cannot be written: {}",
            std::strerror(errno));
  (void)posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace spillway
