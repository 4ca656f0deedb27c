// SPDX-License-Identifier: Apache-2.0
#include "kv/block_allocator.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "device/ops.h"

namespace spillway {

BlockAllocator::BlockAllocator(int32_t blocks)
    : used_(static_cast<size_t>(blocks)), heap_(used_.size()), free_(blocks) {
  std::iota(heap_.begin(), heap_.end(), BlockId{0});  // ascending is a min-heap
}

std::optional<BlockId> BlockAllocator::try_allocate() {
  if (heap_.empty()) return std::nullopt;
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  const BlockId id = heap_.back();
  heap_.pop_back();
  used_[static_cast<size_t>(id)] = true;
  --free_;
  return id;
}

void BlockAllocator::release(BlockId id) {
  SPW_ASSERT(id >= 0 && id < total() && used_[static_cast<size_t>(id)]);
  used_[static_cast<size_t>(id)] = false;
  heap_.push_back(id);
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  ++free_;
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : allocator_(other.allocator_), blocks_(std::exchange(other.blocks_, {})) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  std::swap(allocator_, other.allocator_);
  std::swap(blocks_, other.blocks_);
  return *this;
}

bool BlockTable::try_reserve(int64_t tokens) {
  const int64_t missing = blocks_for_tokens(tokens) - static_cast<int64_t>(blocks_.size());
  if (missing > allocator_->free()) return false;
  for (int64_t i = 0; i < missing; ++i) blocks_.push_back(allocator_->try_allocate().value());
  return true;
}

void BlockTable::clear() {
  for (const BlockId id : blocks_) allocator_->release(id);
  blocks_.clear();
}

int64_t BlockTable::capacity_tokens() const {
  return static_cast<int64_t>(blocks_.size()) * kKvBlockTokens;
}

int64_t blocks_for_tokens(int64_t tokens) { return ceil_div<int64_t>(tokens, kKvBlockTokens); }

}  // namespace spillway
