// SPDX-License-Identifier: Apache-2.0
#include "kv/block_allocator.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "device/ops.h"

namespace spillway {

BlockAllocator::BlockAllocator(const std::vector<int32_t>& pools, int64_t span_blocks)
    : span_blocks_(span_blocks) {
  SPW_ASSERT(pools.size() <= kOrder.size() && span_blocks >= 0);
  for (const int32_t blocks : pools) {
    const Tier tier = kOrder[pools_.size()];
    Pool& pool = pools_.emplace_back();
    pool.blocks.resize(static_cast<size_t>(blocks));
    pool.heap = block_range(0, blocks, tier);  // ascending is a min-heap
  }
}

int32_t BlockAllocator::total() const {
  int32_t sum = 0;
  for (const Tier pool : pools()) sum += total(pool);
  return sum;
}

int32_t BlockAllocator::free() const {
  int32_t sum = 0;
  for (const Tier pool : pools()) sum += free(pool);
  return sum;
}

int32_t BlockAllocator::most_free() const {
  int32_t most = 0;
  for (const Tier pool : pools()) most = std::max(most, free(pool));
  return most;
}

int32_t BlockAllocator::largest_pool() const {
  int32_t most = 0;
  for (const Tier pool : pools()) most = std::max(most, total(pool));
  return most;
}

int64_t BlockAllocator::longest() const {
  if (span_blocks_ == 0) return largest_pool();
  const Tier last = pools().back();
  int64_t blocks = total(last);
  for (const Tier pool : pools())
    if (pool != last) blocks += total(pool) / span_blocks_ * span_blocks_;
  return std::max<int64_t>(largest_pool(), blocks);
}

bool BlockAllocator::can_follow(std::span<const BlockId> blocks, BlockId next, bool spans) const {
  if (blocks.empty()) return true;
  const Tier before = blocks.back().tier, now = next.tier;
  const bool ends_run = span_blocks_ > 0 && static_cast<int64_t>(blocks.size()) % span_blocks_ == 0;
  return now == before || (spans && now > before && ends_run);
}

std::vector<PoolRoom> BlockAllocator::rooms() const {
  std::vector<PoolRoom> rooms;
  for (const Tier pool : pools()) rooms.push_back({free(pool), at(pool).promised});
  return rooms;
}

std::optional<BlockId> BlockAllocator::try_allocate(Tier pool) {
  Pool& from = at(pool);
  if (from.heap.empty()) {
    if (from.kept.empty()) return std::nullopt;
    evict(from.kept.front());
  }
  std::pop_heap(from.heap.begin(), from.heap.end(), std::greater<>());
  const BlockId id = from.heap.back();
  from.heap.pop_back();
  block(id).holders = 1;
  return id;
}

void BlockAllocator::make_room(Tier pool, int64_t blocks) {
  Pool& of = at(pool);
  while (static_cast<int64_t>(of.heap.size()) < blocks && !of.kept.empty()) evict(of.kept.front());
}

std::vector<BlockAllocator::Move> BlockAllocator::resize(Tier pool, int32_t blocks) {
  Pool& of = at(pool);
  const int32_t before = total(pool);
  SPW_ASSERT(blocks >= 0 && before - free(pool) <= blocks);
  if (blocks >= before) {
    of.blocks.resize(static_cast<size_t>(blocks));
    for (const BlockId id : block_range(before, blocks - before, pool)) add_free(id);
    return {};
  }
  std::vector<BlockId> held;
  for (const BlockId id : block_range(blocks, before - blocks, pool)) {
    if (block(id).holders > 0) {
      held.push_back(id);
    } else if (!block(id).contents.empty()) {
      evict(id);
    }
  }
  std::erase_if(of.heap, [&](BlockId id) { return id.number >= blocks; });
  std::make_heap(of.heap.begin(), of.heap.end(), std::greater<>());
  std::vector<Move> moves;
  moves.reserve(held.size());
  for (const BlockId from : held) {
    const BlockId to = try_allocate(pool).value();
    block(to) = std::exchange(block(from), {});
    for (const BlockContents& has : block(to).contents) by_key_.at(has.key) = to;
    moves.push_back({from, to});
  }
  of.blocks.resize(static_cast<size_t>(blocks));
  return moves;
}

void BlockAllocator::add_free(BlockId id) {
  std::vector<BlockId>& heap = at(id.tier).heap;
  heap.push_back(id);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

void BlockAllocator::release(BlockId id) {
  Block& left = block(id);
  SPW_ASSERT(left.holders > 0);
  if (--left.holders > 0) return;
  if (left.contents.empty()) return add_free(id);
  Pool& pool = at(id.tier);
  left.kept = pool.kept.insert(pool.kept.end(), id);
}

bool BlockAllocator::keep(BlockId id, const BlockContents& contents) {
  SPW_ASSERT(holders(id) > 0);
  if (!by_key_.emplace(contents.key, id).second) return false;
  block(id).contents.push_back(contents);
  return true;
}

std::optional<BlockId> BlockAllocator::try_peek(const BlockKey& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? std::nullopt : std::optional(found->second);
}

void BlockAllocator::hold(BlockId id) {
  Block& held = block(id);
  SPW_ASSERT(held.holders > 0 || !held.contents.empty());
  if (held.holders++ == 0) at(id.tier).kept.erase(held.kept);
}

std::optional<BlockId> BlockAllocator::try_find(const BlockKey& key) {
  const auto found = try_peek(key);
  if (found) hold(*found);
  return found;
}

// Free without it where nobody holds it.
void BlockAllocator::drop_keys(BlockId id) {
  Block& of = block(id);
  if (of.contents.empty()) return;
  for (const BlockContents& has : of.contents) by_key_.erase(has.key);
  of.contents.clear();
  if (of.holders > 0) return;
  at(id.tier).kept.erase(of.kept);
  add_free(id);
}

void BlockAllocator::forget_beyond(BlockId id, int32_t tokens) {
  SPW_ASSERT(holders(id) > 0);
  std::erase_if(block(id).contents, [&](const BlockContents& has) {
    return has.tokens > tokens && by_key_.erase(has.key) > 0;
  });
}

void BlockAllocator::evict(BlockId id) {
  if (observer_) observer_(id, block(id).contents.back());
  drop_keys(id);
}

std::vector<std::pair<BlockId, BlockContents>> BlockAllocator::next_evictions(Tier pool,
                                                                              int64_t most) const {
  std::vector<std::pair<BlockId, BlockContents>> next;
  for (const BlockId id : at(pool).kept) {
    if (static_cast<int64_t>(next.size()) >= most) break;
    next.emplace_back(id, block(id).contents.back());
  }
  return next;
}

void BlockAllocator::forget_all() {
  while (!by_key_.empty()) drop_keys(by_key_.begin()->second);
}

BlockTable::BlockTable(BlockTable&& other) noexcept
    : allocator_(other.allocator_),
      expected_(other.expected_),
      pool_(std::exchange(other.pool_, std::nullopt)),
      spans_(std::exchange(other.spans_, false)),
      promised_(std::exchange(other.promised_, 0)),
      blocks_(std::exchange(other.blocks_, {})) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  std::swap(allocator_, other.allocator_);
  std::swap(expected_, other.expected_);
  std::swap(pool_, other.pool_);
  std::swap(spans_, other.spans_);
  std::swap(promised_, other.promised_);
  std::swap(blocks_, other.blocks_);
  return *this;
}

void BlockTable::begin_in(Tier pool, std::vector<BlockId> blocks) {
  SPW_ASSERT(blocks_.empty() && !pool_);
  spans_ = spans(0);
  SPW_ASSERT(blocks.empty() || pool == blocks.back().tier || (spans_ && pool > blocks.back().tier));
  pool_ = pool;
  blocks_ = std::move(blocks);
  const auto have = static_cast<int64_t>(blocks_.size());
  if (!spans_) promise(std::max<int64_t>(0, blocks_for_tokens(expected_) - have));
}

bool BlockTable::spans(int64_t tokens) const {
  if (spans_ || pool_) return spans_;
  return allocator_->span_blocks() > 0 &&
         blocks_for_tokens(std::max(tokens, expected_)) > allocator_->largest_pool();
}

bool BlockTable::uses(Tier pool) const {
  if (!spans_ || blocks_.empty()) return pool_ == pool;
  return blocks_.front().tier <= pool && pool <= blocks_.back().tier;
}

// As far as each pool goes in whole runs; of the last one whatever there is.
std::optional<Reservation> BlockTable::try_plan_spanning(int64_t tokens,
                                                         std::span<const PoolRoom> rooms,
                                                         std::span<const BlockId> begun) const {
  const int64_t run = allocator_->span_blocks();
  const auto up = [&](int64_t blocks) { return (blocks + run - 1) / run * run; };
  auto have = static_cast<int64_t>(blocks_.size() + begun.size());
  const int64_t now = blocks_for_tokens(tokens);
  const std::span<const Tier> pools = allocator_->pools();
  const Tier first = !begun.empty() ? begun.back().tier : pool_.value_or(pools.front());
  Reservation plan{.pool = first};
  if (now <= have) return plan;
  for (const Tier pool : pools.subspan(index_of(first))) {
    if (have >= now) break;
    const bool last = pool == pools.back();
    const int64_t free = rooms[index_of(pool)].free;
    int64_t blocks = std::min(up(now) - have, free);
    if (have + blocks < up(now) && !last) blocks = (have + blocks) / run * run - have;
    if (blocks < 0) return std::nullopt;  // it cannot go on elsewhere from here
    if (blocks == 0) continue;
    if (plan.blocks == 0) {
      plan.pool = pool;
      plan.blocks = blocks;
    } else {
      plan.beyond[index_of(pool)] = blocks;
    }
    have += blocks;
  }
  if (have < now) return std::nullopt;
  return plan;
}

std::optional<Reservation> BlockTable::try_plan(int64_t tokens, std::span<const PoolRoom> rooms,
                                                std::span<const BlockId> begun) const {
  if (spans(tokens)) return try_plan_spanning(tokens, rooms, begun);
  const int64_t now = blocks_for_tokens(tokens),
                in_the_end = std::max(now, blocks_for_tokens(expected_));
  const auto free = [&](Tier pool) { return rooms[index_of(pool)].free; };
  const std::span<const Tier> pools = allocator_->pools();
  Reservation plan{.pool = pool_.value_or(pools.front()), .promised = promised_};
  if (!begun.empty()) {
    plan.pool = begun.front().tier;
  } else if (!pool_) {
    // The first with room for all that is expected; where none has it, the one with most free.
    for (const Tier pool : pools) {
      if (free(pool) - rooms[index_of(pool)].promised >= in_the_end) {
        plan.pool = pool;
        break;
      }
      if (free(pool) > free(plan.pool)) plan.pool = pool;
    }
  }
  const auto have = static_cast<int64_t>(blocks_.size() + begun.size());
  const int64_t missing = now - have;
  if (missing <= 0 && !begun.empty()) plan.promised = std::max<int64_t>(0, in_the_end - have);
  if (missing <= 0) return plan;
  if (missing > free(plan.pool)) return std::nullopt;
  plan.blocks =
      plan.pool != pools.front() ? std::min<int64_t>(in_the_end - have, free(plan.pool)) : missing;
  plan.promised = in_the_end - have - plan.blocks;
  return plan;
}

void BlockTable::take(const Reservation& reservation) {
  if (reservation.blocks == 0) return;
  // As it was planned: only one that no pool can hold is planned so, be it for more than was
  // expected of it.
  const int64_t beyond =
      std::accumulate(reservation.beyond.begin(), reservation.beyond.end(), int64_t{0});
  if (!pool_) {
    spans_ = spans((reservation.blocks + beyond) * kKvBlockTokens);
  } else if (beyond > 0 && !spans_) {
    promise(0);
    spans_ = true;
  }
  SPW_ASSERT(!pool_ || pool_ == reservation.pool || (spans_ && pool_ < reservation.pool));
  for (const Tier pool : allocator_->pools().subspan(index_of(reservation.pool))) {
    const int64_t blocks =
        pool == reservation.pool ? reservation.blocks : reservation.beyond[index_of(pool)];
    if (blocks == 0) continue;
    SPW_ASSERT(blocks <= allocator_->free(pool));
    pool_ = pool;
    allocator_->make_room(pool, blocks);
    for (int64_t i = 0; i < blocks; ++i) blocks_.push_back(allocator_->try_allocate(pool).value());
  }
  if (!spans_) promise(reservation.promised);
}

bool BlockTable::try_reserve(int64_t tokens) {
  const auto plan = try_plan(tokens, allocator_->rooms());
  if (plan) take(*plan);
  return plan.has_value();
}

void BlockTable::promise(int64_t blocks) {
  allocator_->promise(pool_.value(), blocks - promised_);
  promised_ = blocks;
}

void rename_block(BlockId& block, std::span<const BlockAllocator::Move> moves) {
  const auto moved = std::ranges::lower_bound(moves, block, {}, &BlockAllocator::Move::from);
  if (moved != moves.end() && moved->from == block) block = moved->to;
}

void BlockTable::rename(std::span<const BlockAllocator::Move> moves) {
  for (BlockId& block : blocks_) rename_block(block, moves);
}

std::optional<BlockId> BlockTable::cut_back(int64_t tokens) {
  const auto whole = static_cast<size_t>(tokens / kKvBlockTokens);
  const auto rest = static_cast<int32_t>(tokens % kKvBlockTokens);
  SPW_ASSERT(pool_ && blocks_.size() * kKvBlockTokens >= static_cast<size_t>(tokens));
  const bool grows_by_blocks = !spans_ && pool_ == allocator_->pools().front();
  // Elsewhere blocks were taken together for what is expected, and stay; but not those of others.
  size_t left = whole + (rest > 0 ? 1 : 0);
  if (!grows_by_blocks) {
    const auto shared =
        std::find_if(blocks_.begin() + static_cast<std::ptrdiff_t>(left), blocks_.end(),
                     [&](BlockId id) { return allocator_->holders(id) > 1; });
    for (auto own = blocks_.begin() + static_cast<std::ptrdiff_t>(left); own != shared; ++own)
      allocator_->forget_beyond(*own, 0);
    left = static_cast<size_t>(shared - blocks_.begin());
  }
  std::optional<BlockId> cut_into;
  if (rest > 0 && allocator_->holders(blocks_[whole]) > 1) {
    cut_into = blocks_[whole];
    left = whole;
  } else if (rest > 0) {
    allocator_->forget_beyond(blocks_[whole], rest);
  }
  const auto dropped = static_cast<int64_t>(blocks_.size() - left);
  while (blocks_.size() > left) {
    if (blocks_.back() != cut_into) allocator_->release(blocks_.back());
    blocks_.pop_back();
  }
  if (dropped == 0) return cut_into;
  if (!spans_) {
    promise(std::max<int64_t>(0, blocks_for_tokens(expected_) - static_cast<int64_t>(left)));
  } else if (!blocks_.empty()) {
    pool_ = blocks_.back().tier;
  }
  return cut_into;
}

void BlockTable::clear() {
  if (pool_) promise(0);
  // The last ones are left first: they are of no use without those before them.
  for (auto id = blocks_.rbegin(); id != blocks_.rend(); ++id) allocator_->release(*id);
  blocks_.clear();
  pool_.reset();
  spans_ = false;
}

}  // namespace spillway
