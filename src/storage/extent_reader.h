// SPDX-License-Identifier: Apache-2.0
// Reads extents of a model's files asynchronously, ahead of their use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "storage/async_io.h"
#include "storage/tensor_index.h"

namespace spillway {

// Several extents in flight, e.g. those of a layer on disk. Move-only; reader and buffer must
// outlive it. The destructor waits.
class ExtentBatch {
 public:
  bool is_done() const;
  // Blocks until all extents are read. Throws kIo, naming path and offset.
  void wait();
  // Returns the ith extent; valid after wait().
  std::span<const std::byte> bytes(size_t i) const { return reads_[i].bytes; }
  size_t size() const { return reads_.size(); }

 private:
  friend class ExtentReader;
  std::vector<ExtentRead> reads_;
};

// Holds the files open. Thread-safe like IoQueue, which it uses and which must outlive it.
class ExtentReader {
 public:
  // Throws what IoFile throws.
  ExtentReader(IoQueue& queue, std::span<const std::filesystem::path> paths);

  // Returns the buffer size that begin() needs for these extents; whole blocks are read for each.
  static size_t buffer_bytes(std::span<const Extent> extents);
  // Begins to read the extents, one after another, into `buffer` (aligned to kDirectAlignment).
  // Each begins at its offset % kDirectAlignment in a block. Throws kInvalidArgument for a file
  // index that does not exist, and kIo for extents that end past their file.
  ExtentBatch begin(std::span<const Extent> extents, std::span<std::byte> buffer) const;

  // Whether reads of a file bypass the page cache, as far as is known yet.
  bool is_direct(int32_t file) const { return file_at(file).is_direct(); }

 private:
  const IoFile& file_at(int32_t file) const;

  IoQueue& queue_;
  std::vector<std::unique_ptr<IoFile>> files_;
  std::vector<uint64_t> file_bytes_;  // sizes when the files were opened
};

}  // namespace spillway
