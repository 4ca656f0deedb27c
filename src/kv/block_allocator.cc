// SPDX-License-Identifier: Apache-2.0
#include "kv/block_allocator.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "device/ops.h"

namespace spillway {

BlockAllocator::BlockAllocator(const std::vector<int32_t>& pools) {
  BlockId first = 0;
  for (const int32_t blocks : pools) {
    Pool& pool = pools_.emplace_back();
    pool.first = first;
    pool.total = blocks;
    pool.heap.resize(static_cast<size_t>(blocks));
    std::iota(pool.heap.begin(), pool.heap.end(), first);  // ascending is a min-heap
    first += blocks;
  }
  used_.resize(static_cast<size_t>(first));
}

int32_t BlockAllocator::free() const {
  int32_t sum = 0;
  for (int i = 0; i < pools(); ++i) sum += free(i);
  return sum;
}

int32_t BlockAllocator::most_free() const {
  int32_t most = 0;
  for (int i = 0; i < pools(); ++i) most = std::max(most, free(i));
  return most;
}

int32_t BlockAllocator::largest_pool() const {
  int32_t most = 0;
  for (int i = 0; i < pools(); ++i) most = std::max(most, total(i));
  return most;
}

std::optional<BlockId> BlockAllocator::try_allocate(int pool) {
  std::vector<BlockId>& heap = pools_[static_cast<size_t>(pool)].heap;
  if (heap.empty()) return std::nullopt;
  std::pop_heap(heap.begin(), heap.end(), std::greater<>());
  const BlockId id = heap.back();
  heap.pop_back();
  used_[static_cast<size_t>(id)] = true;
  return id;
}

void BlockAllocator::release(BlockId id) {
  SPW_ASSERT(id >= 0 && id < total() && used_[static_cast<size_t>(id)]);
  used_[static_cast<size_t>(id)] = false;
  for (Pool& pool : pools_) {
    if (id >= pool.first + pool.total) continue;
    pool.heap.push_back(id);
    std::push_heap(pool.heap.begin(), pool.heap.end(), std::greater<>());
    return;
  }
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : allocator_(other.allocator_),
      expected_(other.expected_),
      pool_(std::exchange(other.pool_, -1)),
      promised_(std::exchange(other.promised_, 0)),
      blocks_(std::exchange(other.blocks_, {})) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  std::swap(allocator_, other.allocator_);
  std::swap(expected_, other.expected_);
  std::swap(pool_, other.pool_);
  std::swap(promised_, other.promised_);
  std::swap(blocks_, other.blocks_);
  return *this;
}

bool BlockTable::try_reserve(int64_t tokens) {
  const int64_t now = blocks_for_tokens(tokens),
                in_the_end = std::max(now, blocks_for_tokens(expected_));
  if (pool_ < 0) {
    // The first with room for all that is expected; where none has it, the one with most free.
    int chosen = 0;
    for (int pool = 0; pool < allocator_->pools(); ++pool) {
      if (allocator_->unpromised(pool) >= in_the_end) {
        chosen = pool;
        break;
      }
      if (allocator_->free(pool) > allocator_->free(chosen)) chosen = pool;
    }
    if (allocator_->free(chosen) < now) return false;
    pool_ = chosen;
  }
  const auto have = static_cast<int64_t>(blocks_.size());
  int64_t missing = now - have;
  if (missing <= 0) return true;
  if (missing > allocator_->free(pool_)) return false;
  if (pool_ > 0) missing = std::min<int64_t>(in_the_end - have, allocator_->free(pool_));
  for (int64_t i = 0; i < missing; ++i) blocks_.push_back(allocator_->try_allocate(pool_).value());
  promise(in_the_end - have - missing);
  return true;
}

void BlockTable::promise(int64_t blocks) {
  allocator_->promise(pool_, blocks - promised_);
  promised_ = blocks;
}

void BlockTable::clear() {
  if (pool_ >= 0) promise(0);
  for (const BlockId id : blocks_) allocator_->release(id);
  blocks_.clear();
  pool_ = -1;
}

}  // namespace spillway
