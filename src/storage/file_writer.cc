// SPDX-License-Identifier: Apache-2.0
#include "storage/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/error.h"
#include "base/printable.h"
#include "storage/io_calls.h"

namespace spillway {

FileWriter::FileWriter(const std::filesystem::path& path) : path_(path), temporary_(path) {
  static std::atomic<unsigned> counter{0};
  temporary_ += fmt::format(".tmp.{}.{}", ::getpid(), counter.fetch_add(1));
  do {
    fd_ = open_call(temporary_, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  } while (fd_ == -EINTR);
  SPW_CHECK(fd_ >= 0, kIo, "cannot create {}: {}", printable_path(temporary_), error_text(fd_));
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void FileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const int64_t n = append_call(fd_, bytes);
    if (n == -EINTR) continue;
    SPW_CHECK(n >= 0, kIo, "writing {}: {}", printable_path(temporary_), error_text(n));
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void FileWriter::commit() {
  // Both before the rename: a name that is there after a crash must have its bytes.
  int64_t result = 0;
  do {
    result = sync_call(fd_);
  } while (result == -EINTR);
  if (result == 0 || result == -EINVAL) result = rename_call(temporary_, path_);  // EINVAL: no sync
  SPW_CHECK(result == 0, kIo, "writing {}: {}", printable_path(path_), error_text(result));
  ::close(fd_);
  fd_ = -1;
}

}  // namespace spillway
