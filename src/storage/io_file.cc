// SPDX-License-Identifier: Apache-2.0
#include "storage/io_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/fault_points.h"
#include "base/printable.h"
#include "storage/io_calls.h"

namespace spillway {

IoFile::IoFile(const std::filesystem::path& path, Access access, IoUser user)
    : path_(path), user_(user) {
  // O_NONBLOCK keeps open() from waiting for a writer of a FIFO; it has no effect on regular files.
  const int flags = (access == Access::kRead ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK;
  do {
    fd_ = open_call(path, flags | O_NOCTTY);
  } while (fd_.get() == -EINTR);
  if (!fd_.is_open()) {
    const int error = -fd_.get();
    const bool bad_path = error == ENOENT || error == ENOTDIR || error == EACCES ||
                          error == EPERM || error == ELOOP || error == EISDIR;
    fail(bad_path ? ErrorCode::kInvalidArgument : ErrorCode::kIo, "cannot open {}: {}",
         printable_path(path), error_text(error));
  }
  struct stat info {};
  SPW_CHECK(::fstat(fd_.get(), &info) == 0 && S_ISREG(info.st_mode), kInvalidArgument,
            "{} is not a regular file", printable_path(path));
  start_direct();
}

IoFile::IoFile(FileDescriptor fd, const std::filesystem::path& path, IoUser user)
    : path_(path), user_(user), fd_(std::move(fd)) {
  start_direct();
}

// The flag is set after open(), because some file systems create the file and then refuse the flag.
void IoFile::start_direct() {
  // With O_NONBLOCK, io_uring would return EAGAIN instead of waiting.
  const int flags = ::fcntl(fd_.get(), F_GETFL) & ~O_NONBLOCK;
  direct_ = injected_error("io.direct") == 0 && ::fcntl(fd_.get(), F_SETFL, flags | O_DIRECT) == 0;
  if (!direct_) ::fcntl(fd_.get(), F_SETFL, flags);
}

void IoFile::stop_direct() const {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags >= 0) ::fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT);
  direct_.store(false, std::memory_order_relaxed);
}

uint64_t IoFile::size() const {
  struct stat info {};
  SPW_CHECK(::fstat(fd_.get(), &info) == 0, kIo, "cannot stat {}: {}", printable_path(path_),
            error_text(errno));
  return static_cast<uint64_t>(info.st_size);
}

}  // namespace spillway
