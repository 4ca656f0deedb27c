// SPDX-License-Identifier: Apache-2.0
#include "storage/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "storage/io_calls.h"
#include "storage/mapped_files.h"

namespace spillway {

void MemorySource::read_exact(uint64_t offset, std::span<std::byte> out) const {
  SPW_CHECK(offset <= bytes_.size() && out.size() <= bytes_.size() - offset, kIo,
            "{}: reading {} bytes at byte {}: the file ends at {}", label_, out.size(), offset,
            bytes_.size());
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
}

File::File(const std::filesystem::path& path) : path_(path), label_(printable_name(path)) {
  // O_NONBLOCK keeps open() from waiting for a writer of a FIFO; it has no effect on regular files.
  do {
    fd_ = open_call(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (fd_.get() == -EINTR);
  if (!fd_.is_open()) {
    const int error = -fd_.get();
    const bool bad_path = error == ENOENT || error == ENOTDIR || error == EACCES ||
                          error == EPERM || error == ELOOP || error == ENAMETOOLONG;
    fail(bad_path ? ErrorCode::kInvalidArgument : ErrorCode::kIo, "cannot open {}: {}",
         printable_path(path), std::generic_category().message(error));
  }
  struct stat info {};
  SPW_CHECK(::fstat(fd_.get(), &info) == 0, kIo, "cannot stat {}: {}", printable_path(path),
            std::generic_category().message(errno));
  SPW_CHECK(S_ISREG(info.st_mode), kInvalidArgument, "{} is {}, not a regular file",
            printable_path(path),
            S_ISDIR(info.st_mode) ? "a directory" : "a device, FIFO or socket");
  size_ = static_cast<uint64_t>(info.st_size);
}

void File::read_exact(uint64_t offset, std::span<std::byte> out) const {
  SPW_CHECK(offset <= size_ && out.size() <= size_ - offset, kIo,
            "reading {}: {} bytes at byte {} end past the file's {} bytes", printable_path(path_),
            out.size(), offset, size_);
  while (!out.empty()) {
    const int64_t n = read_call(fd_.get(), out, offset);
    if (n == -EINTR) continue;
    SPW_CHECK(n >= 0, kIo, "reading {} at byte {}: {}", printable_path(path_), offset,
              error_text(n));
    SPW_CHECK(n > 0, kIo, "reading {} at byte {}: the file was truncated while in use",
              printable_path(path_), offset);
    offset += static_cast<uint64_t>(n);
    out = out.subspan(static_cast<size_t>(n));
  }
}

MappedFile::MappedFile(const File& file) : size_(file.size()) {
  if (size_ == 0) return;  // mmap refuses empty maps
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  SPW_CHECK(data != MAP_FAILED, kIo, "mapping {} ({} bytes): {}", printable_path(file.path()),
            size_, std::generic_category().message(errno));
  data_ = static_cast<const std::byte*>(data);
  remember_map(data_, size_, file.path(), file.descriptor());
}

MappedFile::~MappedFile() { unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void MappedFile::unmap() noexcept {
  if (data_ == nullptr) return;
  forget_map(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
  data_ = nullptr;
}

void MappedFile::advise_dontneed(size_t offset, size_t bytes) const noexcept {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = (offset + page - 1) / page * page, last = (offset + bytes) / page * page;
  if (first >= last || last > size_) return;
  madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

bool MappedFile::is_cached(size_t offset, size_t bytes) const noexcept {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t last = std::min(offset + bytes, size_);
  unsigned char present[256];
  for (size_t at = offset / page * page; at < last; at += std::size(present) * page) {
    const size_t length = std::min(last - at, std::size(present) * page);
    if (::mincore(const_cast<std::byte*>(data_) + at, length, present) != 0) return true;
    const size_t pages = (length + page - 1) / page;
    if (!std::all_of(present, present + pages, [](unsigned char p) { return p & 1; })) return false;
  }
  return true;
}

bool MappedFile::try_populate(size_t offset, size_t bytes) const noexcept {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which some systems' headers lack
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = offset / page * page, last = std::min(offset + bytes, size_);
  if (first >= last) return true;
  int result = 0;
  do {
    result = ::madvise(const_cast<std::byte*>(data_) + first, last - first, kPopulateRead);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return true;
  if (errno != EINVAL) return false;
  for (size_t at = first; at < last; at += page) {
    static_cast<void>(*static_cast<const volatile std::byte*>(data_ + at));
  }
  return true;
}

std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const File file(path);
  SPW_CHECK(file.size() <= max_bytes, kInvalidArgument, "{} has {} bytes, more than the {} allowed",
            printable_path(path), file.size(), max_bytes);
  std::string text(file.size(), '\0');
  file.read_exact(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace spillway
