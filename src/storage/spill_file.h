// SPDX-License-Identifier: Apache-2.0
// Blocks of memory on disk and back: KV pages and activations that do not fit elsewhere. What is
// read is what was written, or an error that says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/async_io.h"
#include "storage/temporary_file.h"

namespace spillway {

struct SpillOptions {
  std::filesystem::path dir;    // --disk-dir
  std::string label = "spill";  // a-z and 0-9, for people
  IoUser user = IoUser::kKv;
  size_t block_bytes = 0;  // the longest payload of one block
  uint32_t blocks = 0;
  uint32_t joined_blocks = 1;          // a payload may go on over so many, see write()
  uint64_t budget_bytes = UINT64_MAX;  // file_bytes() must not be more
};

// What a block must be when it is read. Kept in memory, where a broken disk cannot touch it, and
// not in the file: nobody reads that after this process, and a header beside each payload would
// cost another 4 KiB of every transfer (an eighth of a page of 32 KiB).
struct SpillHeader {
  uint64_t magic = 0;  // kSpillMagic once written
  uint32_t block = 0;
  uint32_t payload_bytes = 0;
  uint64_t generation = 0;  // writes of this block so far
  uint64_t checksum = 0;    // XXH3-64 of the fields above and the payload
};
inline constexpr uint64_t kSpillMagic = 0x314c4c4950533377;

// The checksum that `header` should have with `payload`. About 10 GB/s on one thread.
uint64_t spill_checksum(const SpillHeader& header, std::span<const std::byte> payload);

// A read on its way. Move-only; file and buffer must outlive it.
class SpillRead {
 public:
  SpillRead() = default;
  bool pending() const { return ticket_.pending(); }
  bool is_done() const { return ticket_.is_done(); }
  // Blocks until it is there and gives the payload, which lies in the buffer. Throws kIo where it
  // cannot be read, and kCorrupt where it is not what was last written; either way it is lost, and
  // the caller computes it again.
  std::span<const std::byte> wait();

 private:
  friend class SpillFile;
  SpillHeader header_;
  const IoFile* file_ = nullptr;
  std::span<std::byte> payload_;
  IoTicket ticket_;  // last: its destructor waits
};

// A file of blocks of one size, taken whole from the disk when it is made: later writes do not find
// it full. It has no name and is gone with the process (temporary_file.h). Thread-safe, except that
// one block is used by one thread at a time. Throws kIo, also where the disk has no room;
// kInvalidArgument where the budget has none.
class SpillFile {
 public:
  SpillFile(IoQueue& queue, const SpillOptions& options);
  // Waits for what is on its way.
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // What `blocks` blocks take on disk, and how many fit.
  static uint64_t file_bytes(size_t block_bytes, uint64_t blocks) {
    return align_up(block_bytes) * blocks;
  }

  uint32_t blocks() const { return static_cast<uint32_t>(headers_.size()); }
  size_t block_bytes() const { return block_bytes_; }
  uint64_t file_bytes() const { return file_.bytes(); }
  // What a buffer needs for a payload: whole blocks of the disk are transferred.
  static size_t buffer_bytes(size_t payload_bytes) { return align_up(payload_bytes); }

  // Begins to write a block. The payload is 1 to block_bytes() long, begins at a multiple of
  // kDirectAlignment, and memory goes on to buffer_bytes() behind it; it stays as it is until the
  // ticket is done. Waits where an older transfer of the block is on its way.
  // Where blocks may be joined, the payload may be as long as several of them: it goes on over the
  // blocks behind, which hold nothing of their own then, and must not be on their way themselves.
  IoTicket write(uint32_t block, std::span<const std::byte> payload);
  // Begins to read what was last written into the block, into an aligned buffer of
  // buffer_bytes(payload). Waits where it is still being written. Throws kCorrupt where nothing was
  // written, or writing it failed.
  SpillRead read(uint32_t block, std::span<std::byte> buffer);
  // Forgets a block's content; reading it then throws.
  void drop(uint32_t block);

  // How long the payload in the block is; 0 where there is none.
  size_t payload_bytes(uint32_t block) const;

  // For tests that break it.
  const IoFile& file() const { return file_.file(); }
  uint64_t offset_of(uint32_t block) const { return align_up(block_bytes_) * block; }

 private:
  class Transfers;  // what is on its way, by block

  SpillHeader& header_of(uint32_t block);

  IoQueue& queue_;
  const size_t block_bytes_;
  const uint32_t joined_blocks_;
  TemporaryFile file_;
  std::vector<SpillHeader> headers_;
  std::shared_ptr<Transfers> transfers_;
};

}  // namespace spillway
