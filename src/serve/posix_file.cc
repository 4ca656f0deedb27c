// SPDX-License-Identifier: Apache-2.0
#include "serve/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <span>

#include "base/error.h"
#include "base/printable.h"
#include "storage/io_calls.h"

namespace spillway {
namespace {

// Most calls in a row that transfer nothing although there is more to transfer.
constexpr int kMostStalls = 100;

// Repeats `call` while a signal interrupts it; returns -errno or the call's result.
template <class Call>
auto without_interruption(const Call& call) {
  auto result = call();
  while (result == -EINTR) result = call();
  return result;
}

FileDescriptor open_file(const std::filesystem::path& path, int flags) {
  FileDescriptor file;
  do {
    file = open_call(path, flags | O_CLOEXEC, 0644);
  } while (file.get() == -EINTR);
  return file;
}

// EINVAL means that this kind of file cannot be synced, which is no error.
int64_t sync(int fd) {
  const int64_t result = without_interruption([&] { return sync_call(fd); });
  return result == -EINVAL ? 0 : result;
}

[[noreturn]] void fail_io(const char* doing, const std::filesystem::path& path, int64_t error) {
  const bool full = error == -ENOSPC || error == -EDQUOT || error == -EFBIG;
  fail(ErrorCode::kIo, "{} {}: {}{}", doing, printable_path(path), error_text(error),
       full ? "; make room and run the same command again, it goes on where it was" : "");
}

}  // namespace

PosixFile::PosixFile(const std::filesystem::path& path, int flags)
    : path_(path), fd_(open_file(path, flags)) {
  if (!fd_.is_open()) fail_io("opening", path_, fd_.get());
}

uint64_t PosixFile::size() const {
  struct stat status = {};
  if (::fstat(fd_.get(), &status) != 0) fail_io("looking at", path_, -errno);
  return static_cast<uint64_t>(status.st_size);
}

size_t PosixFile::read(uint64_t offset, char* out, size_t bytes) const {
  std::span<std::byte> rest = std::as_writable_bytes(std::span(out, bytes));
  for (int stalls = 0; !rest.empty();) {
    const int64_t n = without_interruption([&] { return read_call(fd_.get(), rest, offset); });
    if (n < 0) fail_io("reading", path_, n);
    if (n == 0 && offset >= size()) break;
    stalls = n > 0 ? 0 : stalls + 1;
    if (stalls > kMostStalls) fail_io("reading", path_, -EIO);
    offset += static_cast<uint64_t>(n);
    rest = rest.subspan(static_cast<size_t>(n));
  }
  return bytes - rest.size();
}

std::string PosixFile::read_exact(uint64_t offset, size_t bytes) const {
  std::string text(bytes, '\0');
  SPW_CHECK(read(offset, text.data(), bytes) == bytes, kIo,
            "reading {}: it ends before byte {}; something else changed it", printable_path(path_),
            offset + bytes);
  return text;
}

void PosixFile::write(uint64_t offset, std::string_view text) {
  std::span<const std::byte> rest = std::as_bytes(std::span(text));
  for (int stalls = 0; !rest.empty();) {
    const int64_t n = without_interruption([&] { return write_call(fd_.get(), rest, offset); });
    if (n < 0) fail_io("writing", path_, n);
    stalls = n > 0 ? 0 : stalls + 1;
    if (stalls > kMostStalls) fail_io("writing", path_, -EIO);
    offset += static_cast<uint64_t>(n);
    rest = rest.subspan(static_cast<size_t>(n));
  }
}

void PosixFile::truncate(uint64_t bytes) {
  const int64_t result = without_interruption([&] { return truncate_call(fd_.get(), bytes); });
  if (result < 0) fail_io("writing", path_, result);
}

void PosixFile::sync() {
  if (const int64_t result = spillway::sync(fd_.get()); result < 0)
    fail_io("writing", path_, result);
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  const int64_t result = without_interruption([&] { return rename_call(from, to); });
  SPW_CHECK(result == 0, kIo, "cannot rename {} to {}: {}", printable_path(from),
            printable_path(to), error_text(result));
  sync_folder_of(to);
}

void sync_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const FileDescriptor file = open_file(folder, O_RDONLY | O_DIRECTORY);
  if (!file.is_open()) return;
  const int64_t result = sync(file.get());
  // Other errors mean that this file system cannot sync folders.
  if (result == -EIO || result == -ENOSPC || result == -EDQUOT) fail_io("writing", folder, result);
}

}  // namespace spillway
