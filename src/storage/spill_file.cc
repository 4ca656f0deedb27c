// SPDX-License-Identifier: Apache-2.0
#include "storage/spill_file.h"

#include <xxhash.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/fault_points.h"
#include "base/printable.h"

namespace spillway {

uint64_t spill_checksum(const SpillHeader& header, std::span<const std::byte> payload) {
  const uint64_t fields[] = {header.magic, header.block, header.payload_bytes, header.generation};
  return XXH3_64bits_withSeed(payload.data(), payload.size(), XXH3_64bits(fields, sizeof fields));
}

// The state shared with the callbacks of transfers, so that they never touch a destroyed object.
// Thread-safe.
class SpillFile::Transfers {
 public:
  explicit Transfers(size_t blocks) : blocks_(blocks) {}

  // Waits until no write of the block is in flight (nor a read, if `write`), then registers a
  // transfer.
  void begin(uint32_t block, bool write) {
    std::unique_lock lock(mutex_);
    Block& state = blocks_[block];
    ended_.wait(lock, [&] { return !state.writing && !(write && state.reads > 0); });
    if (write) {
      state.writing = true;
    } else {
      ++state.reads;
    }
    ++under_way_;
  }
  void end(uint32_t block, bool write, bool failed) {
    const std::lock_guard lock(mutex_);
    Block& state = blocks_[block];
    if (write) {
      state.writing = false;
      state.lost = failed;
    } else {
      --state.reads;
    }
    --under_way_;
    ended_.notify_all();
  }
  // Whether the last write failed; waits for one in flight.
  bool is_lost(uint32_t block) {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return !blocks_[block].writing; });
    return blocks_[block].lost;
  }
  void wait_all() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return under_way_ == 0; });
  }

 private:
  struct Block {
    uint16_t reads = 0;
    bool writing = false, lost = false;
  };
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<Block> blocks_;
  size_t under_way_ = 0;
};

namespace {

uint64_t checked_file_bytes(const SpillOptions& options) {
  // A size and a count below 2^32 have a product that does not overflow.
  SPW_CHECK(options.block_bytes > 0 && options.block_bytes <= (uint64_t{1} << 31) &&
                options.blocks > 0 &&
                options.block_bytes * uint64_t{options.joined_blocks} < (uint64_t{1} << 32),
            kInvalidArgument, "a spill file of {} blocks of {} bytes", options.blocks,
            options.block_bytes);
  const uint64_t bytes = SpillFile::file_bytes(options.block_bytes, options.blocks);
  SPW_CHECK(bytes <= options.budget_bytes, kInvalidArgument,
            "{} blocks of {} for {} need {} of disk, {} more than there may be; raise "
            "--disk-memory",
            options.blocks, format_bytes(options.block_bytes), options.label, format_bytes(bytes),
            format_bytes(bytes - options.budget_bytes));
  return bytes;
}

}  // namespace

std::span<const std::byte> SpillRead::wait() {
  SPW_ASSERT(ticket_.pending());
  ticket_.wait();
  if (injected_error("spill.flip")) payload_.back() ^= std::byte{0x10};
  SPW_CHECK(spill_checksum(header_, payload_) == header_.checksum, kCorrupt,
            "block {} of {} (write {}, {} bytes) is not what was written; is the disk failing?",
            header_.block, printable_path(file_->path()), header_.generation,
            header_.payload_bytes);
  return payload_;
}

SpillFile::SpillFile(IoQueue& queue, const SpillOptions& options)
    : queue_(queue),
      block_bytes_(options.block_bytes),
      joined_blocks_(options.joined_blocks),
      file_({.dir = options.dir,
             .label = options.label,
             .bytes = checked_file_bytes(options),
             .user = options.user}),
      headers_(options.blocks),
      transfers_(std::make_shared<Transfers>(options.blocks)) {}

SpillFile::~SpillFile() { transfers_->wait_all(); }

SpillHeader& SpillFile::header_of(uint32_t block) {
  SPW_CHECK(block < headers_.size(), kInvalidArgument, "block {} of a spill file of {}", block,
            headers_.size());
  return headers_[block];
}

size_t SpillFile::payload_bytes(uint32_t block) const {
  SPW_ASSERT(block < headers_.size());
  return headers_[block].magic == kSpillMagic ? headers_[block].payload_bytes : 0;
}

void SpillFile::drop(uint32_t block) { header_of(block).magic = 0; }

IoTicket SpillFile::write(uint32_t block, std::span<const std::byte> payload) {
  SpillHeader& header = header_of(block);
  const uint64_t most = block_bytes_ * std::min<uint64_t>(joined_blocks_, headers_.size() - block);
  SPW_CHECK(!payload.empty() && payload.size() <= most && is_aligned(payload.data()),
            kInvalidArgument,
            "a payload of {} bytes for a block of {}, or memory that is not "
            "aligned",
            payload.size(), most);
  transfers_->begin(block, true);
  const auto end =
      static_cast<uint32_t>((payload.size() + block_bytes_ - 1) / block_bytes_) + block;
  for (uint32_t covered = block + 1; covered < end; ++covered) headers_[covered].magic = 0;
  header.magic = kSpillMagic;
  header.block = block;
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  ++header.generation;
  header.checksum = spill_checksum(header, payload);
  const std::span<const std::byte> whole(payload.data(), buffer_bytes(payload.size()));
  try {
    return queue_.write(file(), offset_of(block), whole,
                        [block, transfers = transfers_](const IoFailure* failure) {
                          transfers->end(block, true, failure != nullptr);
                        });
  } catch (...) {  // the write never started
    transfers_->end(block, true, true);
    throw;
  }
}

SpillRead SpillFile::read(uint32_t block, std::span<std::byte> buffer) {
  const SpillHeader& header = header_of(block);
  SPW_CHECK(header.magic == kSpillMagic && !transfers_->is_lost(block), kCorrupt,
            "block {} of {} {}", block, printable_path(file().path()),
            header.magic == kSpillMagic ? "could not be written" : "holds nothing");
  const size_t bytes = buffer_bytes(header.payload_bytes);
  SPW_CHECK(buffer.size() >= bytes && is_aligned(buffer.data()), kInvalidArgument,
            "a buffer of {} bytes for a payload of {}, or memory that is not aligned",
            buffer.size(), header.payload_bytes);
  transfers_->begin(block, false);
  SpillRead read;
  read.header_ = header;
  read.file_ = &file();
  read.payload_ = buffer.first(header.payload_bytes);
  try {
    read.ticket_ = queue_.read(
        file(), offset_of(block), buffer.first(bytes),
        [block, transfers = transfers_](const IoFailure*) { transfers->end(block, false, false); });
  } catch (...) {
    transfers_->end(block, false, true);
    throw;
  }
  return read;
}

}  // namespace spillway
