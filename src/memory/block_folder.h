// SPDX-License-Identifier: Apache-2.0
// Keeps equally sized blocks, each under a name, in a folder that outlives the process. A read
// returns exactly what was written, or nothing.
//
// The folder that the user names contains one of ours for each kind of blocks (their salt and
// size), with three files: `blocks` (slots of one size), `index` (block_folder_index.h) and `lock`.
// A block is written before its entry, so a process that is killed in between leaves a slot without
// an entry. Before a slot is used again, an entry says that it is empty. Checksums detect
// blocks and entries that were changed, by the disk or otherwise; these are discarded.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file_descriptor.h"
#include "memory/block_folder_index.h"
#include "storage/async_io.h"

namespace spillway {

struct BlockFolderOptions {
  std::filesystem::path dir;  // made if it does not exist
  size_t block_bytes = 0;
  std::string salt;  // everything that decides whether the blocks can be used
  // The folders that are used together with this one, such as those of a model's groups of layers.
  // They are not removed, and this folder gets `share` of the space of all of them together.
  struct Kin {
    size_t block_bytes = 0;
    std::string salt;
  };
  std::vector<Kin> kin = {};
  double share = 1;
  // Limits everything in `dir`. If folders with other salts take more than half of it, the longest
  // unused ones are removed first.
  uint64_t budget_bytes = 0;
};

struct FolderWrite {
  FolderBlock block = {};
  // It has stride() bytes and is aligned for direct I/O, as the buffers of read() must be.
  const std::byte* bytes = nullptr;
};
struct FolderRead {
  BlockName name = {};
  std::byte* bytes = nullptr;
};

// Owns the files, and holds the folder's lock as long as it lives. Used by one thread at a time.
// The queue must outlive it. Reading and writing do not throw: if a disk is full, slow or broken,
// blocks are not kept, and there is a warning.
class BlockFolder {
 public:
  // Returns null, with a warning, if another process has the folder. Throws kInvalidArgument if the
  // path is not a folder, or contains foreign files with the names of ours, and kIo if the system
  // refuses a call.
  [[nodiscard]] static std::unique_ptr<BlockFolder> try_open(IoQueue& queue,
                                                             const BlockFolderOptions& options);
  ~BlockFolder();

  // The blocks that are here, the oldest first.
  std::vector<FolderBlock> blocks() const;
  // The number of blocks that can be written before one has to be dropped.
  uint32_t room() const {
    return capacity_ - std::min(capacity_, static_cast<uint32_t>(by_name_.size()));
  }
  // The number of blocks beyond the budget, if an earlier budget was larger. The caller, who knows
  // what blocks are worth, chooses them for shrink(). Until then nothing can be written.
  uint32_t excess() const { return static_cast<uint32_t>(by_name_.size()) - (capacity_ - room()); }
  // Drops these blocks and gives their bytes back to the file system; logs how many they were.
  void shrink(std::span<const BlockName> names);
  // The size of buffers.
  size_t stride() const { return stride_; }

  // Writes blocks, at most room() of them, concurrently; a block that is here already is replaced.
  // Returns for each whether it is here now.
  std::vector<bool> write(std::span<const FolderWrite> writes);
  // Reads blocks, and returns for each whether it came as it was written. The others are dropped.
  std::vector<bool> read(std::span<const FolderRead> reads);
  void drop(const BlockName& name);

  struct Stats {
    uint64_t damaged = 0;  // blocks and entries that were not as written
    uint64_t read_bytes = 0, written_bytes = 0;
  };
  const Stats& stats() const { return stats_; }

 private:
  BlockFolder(IoQueue& queue, std::filesystem::path folder, const FolderIdentity& identity,
              FileDescriptor lock, uint64_t budget_bytes);
  void read_index();
  // Writes a new index of all blocks that are here.
  void write_index();
  // Returns false if the index cannot be written: then nothing is written any more.
  bool try_append(std::span<const FolderEntry> entries);
  uint64_t offset_of(uint32_t slot) const { return uint64_t{slot} * stride_; }
  void leave(uint32_t slot);
  // Punches a hole for an empty slot; false if the file system cannot take its bytes back.
  bool release_bytes(uint32_t slot) const;
  // Ends the file after the last slot that holds a block.
  void truncate_blocks();
  uint32_t take_slot();
  void stop_writing(const std::string& why);

  struct Slot {
    bool taken = false;
    FolderEntry entry = {};
    uint64_t age = 0;
  };

  IoQueue& queue_;
  std::filesystem::path folder_;
  FolderIdentity identity_;
  size_t stride_;
  FileDescriptor lock_;
  std::unique_ptr<IoFile> file_;
  FileDescriptor index_;
  uint64_t index_end_ = 0;
  size_t index_entries_ = 0;
  uint32_t capacity_ = 0;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::unordered_map<BlockName, uint32_t> by_name_;
  uint64_t next_age_ = 0;
  int failures_ = 0;  // consecutive failed writes
  bool writes_ = true;
  Stats stats_;
};

}  // namespace spillway
