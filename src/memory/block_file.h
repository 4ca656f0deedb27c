// SPDX-License-Identifier: Apache-2.0
// Blocks of one size that live on disk: many at a time in, many at a time out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "storage/spill_file.h"

namespace spillway {

// Owns the file, which is gone with the process; the queue is the engine's and must outlive it.
// What is read is what was written (checksums), or kCorrupt, also where it cannot be read at all:
// the caller computes it again. One thread reads and one writes at a time, each waits for its own.
class BlockFile {
 public:
  // Takes the disk's room at once. Throws kIo where there is none, kInvalidArgument beyond the
  // budget.
  BlockFile(IoQueue& queue, const std::filesystem::path& folder, size_t block_bytes,
            uint32_t blocks, uint64_t budget_bytes);

  // Blocks lie this far apart in buffers, which begin at multiples of kDirectAlignment.
  size_t stride() const { return SpillFile::buffer_bytes(file_.block_bytes()); }
  // ids[i] into, or from, buffer + i * stride(). All are on their way at once; done on return.
  void read(std::span<const uint32_t> ids, std::byte* buffer);
  void write(std::span<const uint32_t> ids, const std::byte* buffer);

  uint64_t file_bytes() const { return file_.file_bytes(); }

 private:
  SpillFile file_;
};

}  // namespace spillway
