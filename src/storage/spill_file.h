// SPDX-License-Identifier: Apache-2.0
// Stores blocks of memory on disk: KV and activations that do not fit elsewhere. A read returns the
// bytes that were written, or throws.
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
  std::string label = "spill";  // shown to users; a-z and 0-9
  IoUser user = IoUser::kKv;
  size_t block_bytes = 0;  // the largest payload of one block
  uint32_t blocks = 0;
  uint32_t joined_blocks = 1;          // the most blocks that a payload may span, see write()
  uint64_t budget_bytes = UINT64_MAX;  // an upper limit for file_bytes()
};

// Describes what a block must contain when it is read. It is kept in memory, where a broken disk
// cannot damage it, and not in the file: nothing reads the file after this process, and a header
// beside each payload would add 4 KiB to every transfer (an eighth of a page of 32 KiB).
struct SpillHeader {
  uint64_t magic = 0;  // kSpillMagic once the block was written
  uint32_t block = 0;
  uint32_t payload_bytes = 0;
  uint64_t generation = 0;  // number of writes of this block so far
  uint64_t checksum = 0;    // XXH3-64 of the fields above and the payload
};
inline constexpr uint64_t kSpillMagic = 0x314c4c4950533377;

// Computes the checksum that `header` should have with `payload`, at about 10 GB/s on one thread.
uint64_t spill_checksum(const SpillHeader& header, std::span<const std::byte> payload);

// A read in flight. Move-only; file and buffer must outlive it.
class SpillRead {
 public:
  SpillRead() = default;
  bool pending() const { return ticket_.pending(); }
  bool is_done() const { return ticket_.is_done(); }
  // Blocks until the read is done and returns the payload, which lies in the buffer. Throws kIo if
  // it cannot be read, and kCorrupt if it is not what was last written. Either way the payload is
  // lost, and the caller computes it again.
  std::span<const std::byte> wait();

 private:
  friend class SpillFile;
  SpillHeader header_;
  const IoFile* file_ = nullptr;
  std::span<std::byte> payload_;
  IoTicket ticket_;  // declared last, because its destructor waits
};

// A file of blocks of one size, fully allocated on disk when it is made, so that later writes do
// not find the disk full. It has no name and vanishes with the process (temporary_file.h).
// Thread-safe, except that a block may be used by only one thread at a time. Throws kIo, also if
// the disk has no room, and kInvalidArgument if the budget has none.
class SpillFile {
 public:
  SpillFile(IoQueue& queue, const SpillOptions& options);
  // Waits for transfers in flight.
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // The size of `blocks` blocks on disk.
  static uint64_t file_bytes(size_t block_bytes, uint64_t blocks) {
    return align_up(block_bytes) * blocks;
  }

  uint32_t blocks() const { return static_cast<uint32_t>(headers_.size()); }
  size_t block_bytes() const { return block_bytes_; }
  uint64_t file_bytes() const { return file_.bytes(); }
  // The buffer size that a payload needs: whole blocks of the disk are transferred.
  static size_t buffer_bytes(size_t payload_bytes) { return align_up(payload_bytes); }

  // Begins to write a block. The payload is 1 to block_bytes() long, begins at a multiple of
  // kDirectAlignment, and is followed by memory up to buffer_bytes(); it must not change until the
  // ticket is done. Waits while an older transfer of the block is in flight. If blocks may be
  // joined, the payload may be as long as several of them. It then continues over the following
  // blocks, which lose their content and must not be in flight themselves.
  IoTicket write(uint32_t block, std::span<const std::byte> payload);
  // Begins to read what was last written into the block, into an aligned buffer of
  // buffer_bytes(payload). Waits while it is still being written. Throws kCorrupt if nothing was
  // written, or if writing it failed.
  SpillRead read(uint32_t block, std::span<std::byte> buffer);
  // Forgets a block's content; reading the block then throws.
  void drop(uint32_t block);

  // Returns the length of the payload in the block; 0 if there is none.
  size_t payload_bytes(uint32_t block) const;

  // Exposed for tests that corrupt the file.
  const IoFile& file() const { return file_.file(); }
  uint64_t offset_of(uint32_t block) const { return align_up(block_bytes_) * block; }

 private:
  class Transfers;  // transfers in flight, by block

  SpillHeader& header_of(uint32_t block);

  IoQueue& queue_;
  const size_t block_bytes_;
  const uint32_t joined_blocks_;
  TemporaryFile file_;
  std::vector<SpillHeader> headers_;
  std::shared_ptr<Transfers> transfers_;
};

}  // namespace spillway
