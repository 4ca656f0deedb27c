// SPDX-License-Identifier: Apache-2.0
// Reads extents of a model's files ahead of their use: DirectReader's asynchronous sister.
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

// Several extents on their way, e.g. what a layer has on disk. Move-only; reader and buffer must
// outlive it. Destroying it waits.
class ExtentBatch {
 public:
  bool is_done() const;
  // Blocks until all are there. Throws kIo, naming path and offset.
  void wait();
  // Of the ith extent, once all are there.
  std::span<const std::byte> bytes(size_t i) const { return reads_[i].bytes; }
  size_t size() const { return reads_.size(); }

 private:
  friend class ExtentReader;
  std::vector<ExtentRead> reads_;
};

// Holds the files open. Thread-safe as IoQueue is, which it uses and which must outlive it.
class ExtentReader {
 public:
  // Throws as IoFile does.
  ExtentReader(IoQueue& queue, std::span<const std::filesystem::path> paths);

  // What begin() needs for these extents: each with the blocks around it.
  static size_t buffer_bytes(std::span<const Extent> extents);
  // Begins to read them, one behind the other, into `buffer` (aligned to kDirectAlignment). Each
  // lies there as its offset lies in a block. Throws kInvalidArgument for a file that there is
  // not, kIo for extents that end past their file.
  ExtentBatch begin(std::span<const Extent> extents, std::span<std::byte> buffer) const;

  // Whether reads of a file go past the page cache, as far as is known yet.
  bool is_direct(int32_t file) const { return file_at(file).is_direct(); }

 private:
  const IoFile& file_at(int32_t file) const;

  IoQueue& queue_;
  std::vector<std::unique_ptr<IoFile>> files_;
  std::vector<uint64_t> file_bytes_;  // as of opening
};

}  // namespace spillway
