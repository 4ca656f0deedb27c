// SPDX-License-Identifier: Apache-2.0
// Reads files that exist, by positioned reads and memory maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/file_descriptor.h"
#include "storage/byte_source.h"

namespace spillway {

// Owns the descriptor of a regular file opened for reading; move-only. Several threads may call
// read_exact() at the same time. Throws kInvalidArgument for a path that does not exist or is no
// regular file, and kIo for other errors of the system.
class File final : public ByteSource {
 public:
  // Directories, devices, sockets and FIFOs are refused (a FIFO without waiting for a writer).
  explicit File(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  // The file's name without folders, printable.
  const std::string& label() const override { return label_; }
  // The size when the file was opened.
  uint64_t size() const override { return size_; }
  // Retries interrupted and short reads. Errors name path and offset.
  void read_exact(uint64_t offset, std::span<std::byte> out) const override;
  int descriptor() const { return fd_.get(); }

 private:
  std::filesystem::path path_;
  std::string label_;
  uint64_t size_ = 0;
  FileDescriptor fd_;
};

// A read-only map of a whole file; move-only. Reading bytes() is thread-safe. If another process
// truncates the file while it is mapped, touching the lost pages raises SIGBUS, which ends the
// process (storage/mapped_files.h). So map only files that do not change, and use File or
// DirectReader for all others.
class MappedFile {
 public:
  explicit MappedFile(const File& file);
  explicit MappedFile(const std::filesystem::path& path) : MappedFile(File(path)) {}
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // A hint that drops the pages lying wholly in [offset, offset + bytes) from this process; reading
  // them again brings them back.
  void advise_dontneed(size_t offset, size_t bytes) const noexcept;
  // Whether the page cache has all of [offset, offset + bytes). True if the kernel does not tell,
  // as for a file that this user neither owns nor may write.
  bool is_cached(size_t offset, size_t bytes) const noexcept;
  // Reads the pages of [offset, offset + bytes) in now. Returns false if they cannot be read, also
  // if the file was truncated (on Linux before 5.14 that raises SIGBUS instead).
  [[nodiscard]] bool try_populate(size_t offset, size_t bytes) const noexcept;

 private:
  void unmap() noexcept;

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Returns the text of a file of at most `max_bytes`; throws kInvalidArgument for a larger one.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace spillway
