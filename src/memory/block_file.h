// SPDX-License-Identifier: Apache-2.0
// A file of equally sized blocks on disk, which are read and written many at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "storage/spill_file.h"

namespace spillway {

// Owns the file, which disappears with the process. The queue is the engine's and must outlive it.
// Reads return what was written, as checksums verify; otherwise, or if a block cannot be read at
// all, read() throws kCorrupt and the caller computes it again. One thread may read while another
// writes; each call waits for its own transfers.
class BlockFile {
 public:
  // Reserves the disk space immediately. Throws kIo if there is not enough, kInvalidArgument if it
  // exceeds the budget.
  BlockFile(IoQueue& queue, const std::filesystem::path& folder, size_t block_bytes,
            uint32_t blocks, uint64_t budget_bytes);

  // Blocks lie this far apart in buffers, which begin at multiples of kDirectAlignment.
  size_t stride() const { return SpillFile::buffer_bytes(file_.block_bytes()); }
  // Transfers each block ids[i] to, or from, buffer + i * stride(). All transfers run concurrently
  // and are done on return.
  void read(std::span<const uint32_t> ids, std::byte* buffer);
  void write(std::span<const uint32_t> ids, const std::byte* buffer);

  uint64_t file_bytes() const { return file_.file_bytes(); }

 private:
  SpillFile file_;
};

}  // namespace spillway
