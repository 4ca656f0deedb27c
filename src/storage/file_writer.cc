// SPDX-License-Identifier: Apache-2.0
#include "storage/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/error.h"
#include "base/printable.h"

namespace spillway {

FileWriter::FileWriter(const std::filesystem::path& path) : path_(path), temporary_(path) {
  static std::atomic<unsigned> counter{0};
  temporary_ += fmt::format(".tmp.{}.{}", ::getpid(), counter.fetch_add(1));
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  SPW_CHECK(fd_ >= 0, kIo, "cannot create {}: {}", printable_path(temporary_),
            std::generic_category().message(errno));
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void FileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    SPW_CHECK(n >= 0, kIo, "writing {}: {}", printable_path(temporary_),
              std::generic_category().message(errno));
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void FileWriter::commit() {
  // Both before the rename: a name that is there after a crash must have its bytes.
  const bool synced = ::fsync(fd_) == 0 || errno == EINVAL;  // EINVAL: no such thing here
  SPW_CHECK(synced && std::rename(temporary_.c_str(), path_.c_str()) == 0, kIo, "writing {}: {}",
            printable_path(path_), std::generic_category().message(errno));
  ::close(fd_);
  fd_ = -1;
}

}  // namespace spillway
