// SPDX-License-Identifier: Apache-2.0
// Hands out KV block ids. Ids are apart from bytes, so that scheduling logic is tested without any
// memory.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace spillway {

using BlockId = int32_t;

// Not thread-safe (the engine's thread). The lowest free id goes first, so that a short run touches
// little memory.
class BlockAllocator {
 public:
  explicit BlockAllocator(int32_t blocks);

  int32_t total() const { return static_cast<int32_t>(used_.size()); }
  int32_t free() const { return free_; }

  // nullopt when all are taken: a normal outcome, the scheduler then waits or preempts.
  [[nodiscard]] std::optional<BlockId> try_allocate();
  // Throws kInternal for an id that is not allocated.
  void release(BlockId id);

 private:
  std::vector<bool> used_;
  std::vector<BlockId> heap_;  // free ids, a min-heap
  int32_t free_;
};

// The blocks of one sequence in order of position; gives them back when destroyed. Move-only. The
// allocator must outlive it.
class BlockTable {
 public:
  explicit BlockTable(BlockAllocator& allocator) : allocator_(&allocator) {}
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { clear(); }

  // Grows to hold `tokens` tokens: all the blocks needed, or none (false).
  [[nodiscard]] bool try_reserve(int64_t tokens);
  void clear();

  const std::vector<BlockId>& blocks() const { return blocks_; }
  int64_t capacity_tokens() const;

 private:
  BlockAllocator* allocator_;
  std::vector<BlockId> blocks_;
};

// Blocks that `tokens` tokens take.
int64_t blocks_for_tokens(int64_t tokens);

}  // namespace spillway
