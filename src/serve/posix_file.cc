// SPDX-License-Identifier: Apache-2.0
#include "serve/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/printable.h"

namespace spillway {

PosixFile::PosixFile(const std::filesystem::path& path, int flags)
    : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
  if (!fd_.is_open()) fail_io("opening", errno);
}

void PosixFile::fail_io(const char* doing, int error) const {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  fail(ErrorCode::kIo, "{} {}: {}{}", doing, printable_path(path_),
       std::generic_category().message(error),
       full ? "; make room and run the same command again, it goes on where it was" : "");
}

uint64_t PosixFile::size() const {
  struct stat status = {};
  if (::fstat(fd_.get(), &status) != 0) fail_io("looking at", errno);
  return static_cast<uint64_t>(status.st_size);
}

size_t PosixFile::read(uint64_t offset, char* out, size_t bytes) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::pread(fd_.get(), out + done, std::min(bytes - done, size_t{1} << 30),
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_io("reading", errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

std::string PosixFile::read_exact(uint64_t offset, size_t bytes) const {
  std::string text(bytes, '\0');
  SPW_CHECK(read(offset, text.data(), bytes) == bytes, kIo,
            "reading {}: it ends before byte {}; something else changed it", printable_path(path_),
            offset + bytes);
  return text;
}

void PosixFile::write(uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_.get(), bytes.data(), std::min(bytes.size(), size_t{1} << 30),
                               static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_io("writing", errno);
    offset += static_cast<uint64_t>(n);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void PosixFile::truncate(uint64_t bytes) {
  int result = 0;
  do {
    result = ::ftruncate(fd_.get(), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) fail_io("writing", errno);
}

void PosixFile::sync() {
  int result = 0;
  do {
    result = ::fsync(fd_.get());
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EINVAL) fail_io("writing", errno);  // EINVAL: no such thing here
}

void sync_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.is_open()) ::fsync(fd.get());
}

}  // namespace spillway
