// SPDX-License-Identifier: Apache-2.0
// Blocks of one size in a folder that outlives the process, each under a name: what is read is
// what was written, or nothing.
//
// The folder that a person names has one of ours inside for each kind of blocks (their salt and
// size), with three files: `blocks` (slots of one size), `index` (block_folder_index.h) and `lock`.
// A block is written before its entry, so a process that is killed in between leaves a slot that
// nobody knows of. A slot that is used again is left first, by an entry. What a disk, or anybody,
// changes is noticed by checksums and forgotten.
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
  std::filesystem::path dir;  // made where it is not there
  size_t block_bytes = 0;
  std::string salt;  // all that decides what the blocks are good for
  // The folders that are used together with this one, as those of a model's groups of layers: they
  // stay, and this one has so much of the room that is theirs together.
  struct Kin {
    size_t block_bytes = 0;
    std::string salt;
  };
  std::vector<Kin> kin = {};
  double share = 1;
  // Of everything in `dir`. Folders with other salts are removed, the longest unused first, as far
  // as they take more than half of it.
  uint64_t budget_bytes = 0;
};

struct FolderWrite {
  FolderBlock block = {};
  const std::byte* bytes = nullptr;  // aligned for direct I/O, as is what read() fills; stride()
};
struct FolderRead {
  BlockName name = {};
  std::byte* bytes = nullptr;
};

// Owns the files, and the folder's lock while it lives. One thread at a time. The queue must
// outlive it. Reading and writing throw nothing: a disk that is full, slow or broken costs what
// would have been kept, and a warning.
class BlockFolder {
 public:
  // Null, with a warning: another process has the folder. Throws kInvalidArgument for what is no
  // folder, or has files of others by our names; kIo for what the system refuses.
  [[nodiscard]] static std::unique_ptr<BlockFolder> try_open(IoQueue& queue,
                                                             const BlockFolderOptions& options);
  ~BlockFolder();

  // What is here, the oldest first.
  std::vector<FolderBlock> blocks() const;
  // So many can be written before one has to be dropped.
  uint32_t room() const {
    return capacity_ - std::min(capacity_, static_cast<uint32_t>(by_name_.size()));
  }
  // So many blocks are beyond the budget, because an earlier one was larger. The caller, who knows
  // what blocks are worth, chooses them for shrink(). Until then nothing can be written.
  uint32_t excess() const { return static_cast<uint32_t>(by_name_.size()) - (capacity_ - room()); }
  // Drops these blocks and gives their bytes back to the file system; logs how many they were.
  void shrink(std::span<const BlockName> names);
  // Buffers are that long.
  size_t stride() const { return stride_; }

  // Which of them are here now; all are on their way at once. No more than there is room for. One
  // that is here already is replaced.
  std::vector<bool> write(std::span<const FolderWrite> writes);
  // Which of them came as they were written. The others are dropped.
  std::vector<bool> read(std::span<const FolderRead> reads);
  void drop(const BlockName& name);

  struct Stats {
    uint64_t damaged = 0;  // blocks and entries that were not what was written
    uint64_t read_bytes = 0, written_bytes = 0;
  };
  const Stats& stats() const { return stats_; }

 private:
  BlockFolder(IoQueue& queue, std::filesystem::path folder, const FolderIdentity& identity,
              FileDescriptor lock, uint64_t budget_bytes);
  void read_index();
  // All that is here, as a new index.
  void write_index();
  // False where the disk does not take it: then nothing is written any more.
  bool try_append(std::span<const FolderEntry> entries);
  uint64_t offset_of(uint32_t slot) const { return uint64_t{slot} * stride_; }
  void leave(uint32_t slot);
  // Of a slot that holds nothing: false where the file system cannot take its bytes back.
  bool release_bytes(uint32_t slot) const;
  // Ends the file behind the last slot that holds a block.
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
  int failures_ = 0;  // writes in a row
  bool writes_ = true;
  Stats stats_;
};

}  // namespace spillway
