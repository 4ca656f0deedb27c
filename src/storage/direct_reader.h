// SPDX-License-Identifier: Apache-2.0
// Reads extents of files into memory without the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "storage/aligned_buffer.h"
#include "storage/tensor_index.h"

namespace spillway {

// Holds the files open. Thread-safe, so that several threads can each have a read in flight. Where
// the file system refuses direct reads (tmpfs), buffered reads take over.
class DirectReader {
 public:
  explicit DirectReader(std::span<const std::filesystem::path> paths);
  ~DirectReader();
  DirectReader(const DirectReader&) = delete;
  DirectReader& operator=(const DirectReader&) = delete;

  // Returns the buffer size that read() needs for an extent of `bytes`; whole blocks are read.
  static size_t buffer_bytes(uint64_t bytes);

  // Reads `extent` into `buffer` (aligned to kDirectAlignment) and returns its bytes there, which
  // begin at extent.offset % kDirectAlignment. Throws kIo, naming path and offset, and
  // kInvalidArgument.
  std::span<const std::byte> read(const Extent& extent, std::span<std::byte> buffer) const;

  // Whether reads of a file bypass the page cache, as far as is known yet.
  bool is_direct(int32_t file) const;

 private:
  class OpenFile;
  const OpenFile& open_file(int32_t file) const;

  std::vector<std::unique_ptr<OpenFile>> files_;
};

}  // namespace spillway
