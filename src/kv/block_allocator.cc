// SPDX-License-Identifier: Apache-2.0
#include "kv/block_allocator.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "device/ops.h"

namespace spillway {
namespace {

// The tokens of a sequence that is longer than any real one.
constexpr int64_t kEndless = int64_t{1} << 40;

}  // namespace

BlockAllocator::BlockAllocator(const std::vector<GroupPools>& groups, int64_t span_blocks,
                               int64_t step_tokens)
    : span_blocks_(span_blocks), step_tokens_(step_tokens) {
  SPW_ASSERT(!groups.empty() && groups.size() <= kMostStateGroups && span_blocks >= 0);
  for (const GroupPools& of : groups) {
    SPW_ASSERT(of.pools.size() <= kOrder.size() && of.pools.size() == groups[0].pools.size());
    Group& group = groups_.emplace_back(Group{.rule = of.rule, .pools = {}});
    for (const int32_t blocks : of.pools) {
      const Tier tier = kOrder[group.pools.size()];
      Pool& pool = group.pools.emplace_back();
      pool.blocks.resize(static_cast<size_t>(blocks));
      // An ascending range is a min-heap.
      pool.heap = block_range(0, blocks, tier, this->groups() - 1);
    }
  }
  const auto full = std::ranges::find(groups_, StateKind::kFull,
                                      [](const Group& group) { return group.rule.kind; });
  if (full != groups_.end()) forecast_group_ = static_cast<int>(full - groups_.begin());
}

int32_t BlockAllocator::total() const {
  int32_t sum = 0;
  for (int group = 0; group < groups(); ++group)
    for (const Tier pool : pools()) sum += total(pool, group);
  return sum;
}

int32_t BlockAllocator::free() const {
  int32_t sum = 0;
  for (int group = 0; group < groups(); ++group) sum += free_of(group);
  return sum;
}

int32_t BlockAllocator::free_of(int group) const {
  int32_t sum = 0;
  for (const Tier pool : pools()) sum += free(pool, group);
  return sum;
}

int64_t BlockAllocator::most_entries(Tier pool, int64_t step_tokens) const {
  int64_t most = blocks_for_tokens(kEndless);
  for (int group = 0; group < groups(); ++group) {
    const int64_t blocks = total(pool, group);
    // A window group whose pool holds a full window does not limit a sequence's length.
    if (rule(group).most_blocks(kEndless, step_tokens) > blocks) most = std::min(most, blocks);
  }
  return most;
}

int64_t BlockAllocator::longest_in(Tier pool) const {
  return most_entries(pool, step_tokens_) * kKvBlockTokens;
}

int64_t BlockAllocator::longest_in_one_pool() const {
  int64_t most = 0;
  for (const Tier pool : pools()) most = std::max(most, longest_in(pool));
  return most;
}

int64_t BlockAllocator::longest() const {
  if (span_blocks_ == 0) return longest_in_one_pool();
  // A sequence that spans pools grows by whole runs.
  const int64_t step_tokens = step_tokens_ + span_blocks_ * kKvBlockTokens;
  const Tier last = pools().back();
  int64_t entries = most_entries(last, step_tokens);
  for (const Tier pool : pools())
    if (pool != last) entries += most_entries(pool, step_tokens) / span_blocks_ * span_blocks_;
  return std::max(longest_in_one_pool(), entries * kKvBlockTokens);
}

bool BlockAllocator::can_follow(std::span<const BlockId> blocks, BlockId next, bool spans) const {
  if (blocks.empty()) return true;
  const Tier before = blocks.back().tier, now = next.tier;
  const bool ends_run = span_blocks_ > 0 && static_cast<int64_t>(blocks.size()) % span_blocks_ == 0;
  return now == before || (spans && now > before && ends_run);
}

PoolRooms BlockAllocator::rooms() const {
  PoolRooms rooms = {};
  for (int group = 0; group < groups(); ++group)
    for (const Tier pool : pools())
      rooms[index_of(group)][index_of(pool)] = {free(pool, group), at(pool, group).promised};
  return rooms;
}

std::optional<BlockId> BlockAllocator::try_allocate(Tier pool, int group) {
  Pool& from = at(pool, group);
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

void BlockAllocator::make_room(Tier pool, int64_t blocks, int group) {
  Pool& of = at(pool, group);
  while (static_cast<int64_t>(of.heap.size()) < blocks && !of.kept.empty()) evict(of.kept.front());
}

std::vector<BlockAllocator::Move> BlockAllocator::resize(Tier pool, int32_t blocks, int group) {
  Pool& of = at(pool, group);
  const int32_t before = total(pool, group);
  SPW_ASSERT(blocks >= 0 && before - free(pool, group) <= blocks);
  if (blocks >= before) {
    of.blocks.resize(static_cast<size_t>(blocks));
    for (const BlockId id : block_range(before, blocks - before, pool, group)) add_free(id);
    return {};
  }
  std::vector<BlockId> held;
  for (const BlockId id : block_range(blocks, before - blocks, pool, group)) {
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
    const BlockId to = try_allocate(pool, group).value();
    block(to) = std::exchange(block(from), {});
    for (const BlockContents& has : block(to).contents) by_key_.at(has.key) = to;
    moves.push_back({from, to});
  }
  of.blocks.resize(static_cast<size_t>(blocks));
  return moves;
}

void BlockAllocator::add_free(BlockId id) {
  std::vector<BlockId>& heap = at(id.tier, id.group).heap;
  heap.push_back(id);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

void BlockAllocator::release(BlockId id) {
  Block& left = block(id);
  SPW_ASSERT(left.holders > 0);
  if (--left.holders > 0) return;
  if (left.contents.empty()) return add_free(id);
  Pool& pool = at(id.tier, id.group);
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
  if (held.holders++ == 0) at(id.tier, id.group).kept.erase(held.kept);
}

std::optional<BlockId> BlockAllocator::try_find(const BlockKey& key) {
  const auto found = try_peek(key);
  if (found) hold(*found);
  return found;
}

// Removes all contents of a block; if it has no holders it becomes an ordinary free block.
void BlockAllocator::drop_keys(BlockId id) {
  Block& of = block(id);
  if (of.contents.empty()) return;
  for (const BlockContents& has : of.contents) by_key_.erase(has.key);
  of.contents.clear();
  if (of.holders > 0) return;
  at(id.tier, id.group).kept.erase(of.kept);
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
                                                                              int64_t most,
                                                                              int group) const {
  std::vector<std::pair<BlockId, BlockContents>> next;
  for (const BlockId id : at(pool, group).kept) {
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
      promised_(std::exchange(other.promised_, {})),
      blocks_(std::exchange(other.blocks_, {})),
      released_(std::exchange(other.released_, {})),
      checkpoint_(std::exchange(other.checkpoint_, std::nullopt)) {}

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  std::swap(allocator_, other.allocator_);
  std::swap(expected_, other.expected_);
  std::swap(pool_, other.pool_);
  std::swap(spans_, other.spans_);
  std::swap(promised_, other.promised_);
  std::swap(blocks_, other.blocks_);
  std::swap(released_, other.released_);
  std::swap(checkpoint_, other.checkpoint_);
  return *this;
}

void BlockTable::begin_in(Tier pool, GroupBlocks blocks) {
  SPW_ASSERT(!pool_);
  spans_ = spans(0);
  pool_ = pool;
  blocks_ = std::move(blocks);
  PerGroup<int64_t> to_come = {};
  for (int group = 0; group < allocator_->groups(); ++group) {
    const std::vector<BlockId>& of_group = blocks_[index_of(group)];
    SPW_ASSERT(of_group.empty() || pool == of_group.back().tier ||
               (spans_ && pool > of_group.back().tier));
    const auto first = std::ranges::find_if_not(of_group, &BlockId::is_released);
    released_[index_of(group)] = static_cast<size_t>(first - of_group.begin());
    const auto have = static_cast<int64_t>(held(group).size());
    to_come[index_of(group)] =
        std::max<int64_t>(0, allocator_->most_blocks(expected_, group) - have);
  }
  if (!spans_) promise(to_come);
}

bool BlockTable::spans(int64_t tokens) const {
  if (spans_ || pool_) return spans_;
  return allocator_->span_blocks() > 0 &&
         std::max(tokens, expected_) > allocator_->longest_in_one_pool();
}

bool BlockTable::uses(Tier pool) const {
  if (pool_ == pool) return true;
  for (int group = 0; spans_ && group < allocator_->groups(); ++group) {
    const std::span<const BlockId> blocks = held(group);
    if (!blocks.empty() && blocks.front().tier <= pool && pool <= blocks.back().tier) return true;
  }
  return false;
}

// Takes whole runs from each pool, as far as it has room, and any number of blocks from the last
// pool. A recurrent state is taken from the pool in which the sequence grows at that time.
std::optional<Reservation> BlockTable::try_plan_spanning(int64_t tokens, const PoolRooms& rooms,
                                                         const GroupBlocks& begun) const {
  const int64_t run = allocator_->span_blocks();
  const auto up = [&](int64_t blocks) { return (blocks + run - 1) / run * run; };
  PerGroup<int64_t> have = {};
  PerGroup<bool> is_paged = {};
  Tier first = pool_.value_or(allocator_->pools().front());
  for (int group = 0; group < allocator_->groups(); ++group) {
    const std::vector<BlockId>& found = begun[index_of(group)];
    have[index_of(group)] = entries(group) + static_cast<int64_t>(found.size());
    is_paged[index_of(group)] = allocator_->rule(group).is_paged();
    if (!found.empty()) first = std::max(first, found.back().tier);
  }
  const int64_t now = blocks_for_tokens(tokens);
  const auto groups = static_cast<size_t>(allocator_->groups());
  const auto is_missing = [&](size_t group) { return have[group] < (is_paged[group] ? now : 1); };
  const auto is_short = [&] {
    for (size_t group = 0; group < groups; ++group)
      if (is_missing(group)) return true;
    return false;
  };
  Reservation plan{.pool = first};
  bool takes = false;  // an earlier pool already gives blocks
  for (const Tier pool : allocator_->pools().subspan(index_of(first))) {
    if (!is_short()) break;
    const auto free = [&](size_t group) { return rooms[group][index_of(pool)].free; };
    // `end`: the entries that all paged groups will have after this pool; `most`: the most that one
    // has now.
    int64_t end = up(now), most = 0;
    for (size_t group = 0; group < groups; ++group) {
      if (is_paged[group]) {
        end = std::min(end, have[group] + free(group));
        most = std::max(most, have[group]);
      } else if (is_missing(group) && free(group) < 1) {
        end = 0;
      }
    }
    if (end < up(now) && pool != allocator_->pools().back()) end = end / run * run;
    if (end < most) return std::nullopt;  // its tables cannot continue in another pool from here
    PerGroup<int64_t> blocks = {};
    for (size_t group = 0; group < groups; ++group) {
      blocks[group] = is_paged[group] ? end - have[group] : is_missing(group) ? 1 : 0;
      have[group] += blocks[group];
    }
    if (std::ranges::all_of(blocks, [](int64_t count) { return count == 0; })) continue;
    if (!takes) plan.pool = pool;
    for (size_t group = 0; group < groups; ++group)
      (takes ? plan.beyond[group][index_of(pool)] : plan.blocks[group]) = blocks[group];
    takes = true;
  }
  if (is_short()) return std::nullopt;
  return plan;
}

std::optional<Reservation> BlockTable::try_plan(int64_t tokens, const PoolRooms& rooms,
                                                const GroupBlocks& begun) const {
  if (spans(tokens)) return try_plan_spanning(tokens, rooms, begun);
  const std::span<const Tier> pools = allocator_->pools();
  const auto groups = static_cast<size_t>(allocator_->groups());
  std::optional<Tier> begins_in;
  PerGroup<int64_t> missing = {}, to_come = {};  // blocks needed now, and for all expected tokens
  for (int group = 0; group < allocator_->groups(); ++group) {
    const std::vector<BlockId>& found = begun[index_of(group)];
    if (!found.empty()) begins_in = found.front().tier;
    const auto have = entries(group) + static_cast<int64_t>(found.size());
    const int64_t held = have - static_cast<int64_t>(released_[index_of(group)]) -
                         std::ranges::count_if(found, &BlockId::is_released);
    int64_t& now = missing[index_of(group)];
    now = std::max<int64_t>(0, allocator_->rule(group).entries(tokens) - have);
    to_come[index_of(group)] =
        std::max(now, allocator_->most_blocks(std::max(tokens, expected_), group) - held);
  }
  const auto room = [&](size_t group, Tier pool) { return rooms[group][index_of(pool)]; };
  const auto has_room = [&](Tier pool) {
    for (size_t group = 0; group < groups; ++group)
      if (missing[group] > room(group, pool).free) return false;
    return true;
  };
  Reservation plan{.pool = begins_in.value_or(pool_.value_or(pools.front())),
                   .promised = promised_};
  if (!begins_in && !pool_) {
    // Chooses the first pool with room for all expected tokens. If none has it, the pool in which
    // the group that lacks room has most free blocks.
    const auto has_room_in_the_end = [&](Tier pool) {
      for (size_t group = 0; group < groups; ++group)
        if (room(group, pool).free - room(group, pool).promised < to_come[group]) return false;
      return true;
    };
    const auto most = [&](Tier pool) {
      int64_t least = room(index_of(allocator_->forecast_group()), pool).free;
      bool is_short = false;
      for (size_t group = 0; group < groups; ++group) {
        const int64_t free = room(group, pool).free;
        if (free >= to_come[group]) continue;
        least = is_short ? std::min(least, free) : free;
        is_short = true;
      }
      return std::tuple(has_room(pool), !is_short, least);
    };
    for (const Tier pool : pools) {
      if (has_room_in_the_end(pool)) {
        plan.pool = pool;
        break;
      }
      if (most(pool) > most(plan.pool)) plan.pool = pool;
    }
  }
  const bool is_short = std::ranges::any_of(missing, [](int64_t blocks) { return blocks > 0; });
  if (!is_short && begins_in) plan.promised = to_come;
  if (!is_short) return plan;
  if (!has_room(plan.pool)) return std::nullopt;
  for (size_t group = 0; group < groups; ++group) {
    // A group that keeps all its blocks takes them together here; a window group leaves the room of
    // tokens that its window has passed to other sequences.
    const bool takes_all =
        plan.pool != pools.front() && allocator_->rule(static_cast<int>(group)).keeps_all();
    plan.blocks[group] =
        takes_all ? std::min(to_come[group], room(group, plan.pool).free) : missing[group];
    plan.promised[group] = to_come[group] - plan.blocks[group];
  }
  return plan;
}

void BlockTable::take(const Reservation& reservation) {
  if (reservation.checkpoint) {
    for (int group = 0; group < allocator_->groups(); ++group) {
      if (allocator_->rule(group).is_paged()) continue;
      std::vector<BlockId>& states = blocks_[index_of(group)];
      SPW_ASSERT(!states.empty() && states.front().tier == Tier::kDevice);
      if (states.size() == 1)
        states.push_back(allocator_->try_allocate(Tier::kDevice, group).value());
    }
    checkpoint_ = reservation.checkpoint;
  }
  // Decides on spanning pools as try_plan() did: it plans that only for a sequence that no single
  // pool can hold, which may also be one that is longer than expected.
  const auto sum = [](const auto& of) { return std::accumulate(of.begin(), of.end(), int64_t{0}); };
  int64_t all = 0, beyond = 0;  // blocks of the group that takes most
  for (size_t group = 0; group < kMostStateGroups; ++group) {
    beyond = std::max(beyond, sum(reservation.beyond[group]));
    all = std::max(all, reservation.blocks[group] + sum(reservation.beyond[group]));
  }
  if (all == 0) return;
  if (!pool_) {
    spans_ = spans(all * kKvBlockTokens);
  } else if (beyond > 0 && !spans_) {
    promise({});
    spans_ = true;
  }
  SPW_ASSERT(!pool_ || pool_ == reservation.pool || (spans_ && pool_ < reservation.pool));
  for (const Tier pool : allocator_->pools().subspan(index_of(reservation.pool))) {
    for (int group = 0; group < allocator_->groups(); ++group) {
      const int64_t blocks = pool == reservation.pool
                                 ? reservation.blocks[index_of(group)]
                                 : reservation.beyond[index_of(group)][index_of(pool)];
      if (blocks == 0) continue;
      SPW_ASSERT(blocks <= allocator_->free(pool, group));
      pool_ = pool;
      allocator_->make_room(pool, blocks, group);
      for (int64_t i = 0; i < blocks; ++i)
        blocks_[index_of(group)].push_back(allocator_->try_allocate(pool, group).value());
    }
  }
  if (!spans_) promise(reservation.promised);
}

bool BlockTable::try_reserve(int64_t tokens) {
  const auto plan = try_plan(tokens, allocator_->rooms());
  if (plan) take(*plan);
  return plan.has_value();
}

void BlockTable::promise(const PerGroup<int64_t>& blocks) {
  for (int group = 0; group < allocator_->groups(); ++group)
    allocator_->promise(pool_.value(), blocks[index_of(group)] - promised(group), group);
  promised_ = blocks;
}

void rename_block(BlockId& block, std::span<const BlockAllocator::Move> moves) {
  const auto moved = std::ranges::lower_bound(moves, block, {}, &BlockAllocator::Move::from);
  if (moved != moves.end() && moved->from == block) block = moved->to;
}

void BlockTable::rename(std::span<const BlockAllocator::Move> moves) {
  for (std::vector<BlockId>& of_group : blocks_)
    for (BlockId& block : of_group) rename_block(block, moves);
}

void BlockTable::release_behind(int64_t computed) {
  if (checkpoint_) drop_state(1);
  for (int group = 0; group < allocator_->groups(); ++group) {
    std::vector<BlockId>& blocks = blocks_[index_of(group)];
    size_t& released = released_[index_of(group)];
    const auto all = static_cast<size_t>(allocator_->rule(group).releasable(computed));
    for (; released < std::min(all, blocks.size()); ++released)
      allocator_->release(
          std::exchange(blocks[released], BlockId::released(blocks[released].tier, group)));
  }
}

void BlockTable::drop_state(size_t entry) {
  for (int group = 0; group < allocator_->groups(); ++group) {
    if (allocator_->rule(group).is_paged()) continue;
    std::vector<BlockId>& states = blocks_[index_of(group)];
    allocator_->release(states.at(entry));
    states.erase(states.begin() + static_cast<std::ptrdiff_t>(entry));
  }
  checkpoint_.reset();
}

std::optional<int64_t> BlockTable::try_cut_end(int64_t tokens) const {
  if (allocator_->has_states()) {
    if (!checkpoint_ || *checkpoint_ > tokens) return std::nullopt;
    tokens = *checkpoint_;
  }
  for (int group = 0; group < allocator_->groups(); ++group) {
    const auto needed = static_cast<size_t>(allocator_->rule(group).unreachable(tokens));
    if (released_[index_of(group)] > needed) return std::nullopt;
  }
  return tokens;
}

PerGroup<std::optional<BlockId>> BlockTable::cut_back(int64_t tokens) {
  SPW_ASSERT(try_cut_end(tokens) == tokens);
  if (checkpoint_) drop_state(0);
  PerGroup<std::optional<BlockId>> cut_into = {};
  PerGroup<int64_t> to_come = promised_;
  for (int group = 0; group < allocator_->groups(); ++group) {
    if (!allocator_->rule(group).is_paged()) continue;
    const int64_t before = entries(group);
    cut_into[index_of(group)] = cut_group_back(tokens, group);
    if (entries(group) == before) continue;
    const auto left = static_cast<int64_t>(held(group).size());
    to_come[index_of(group)] =
        std::max<int64_t>(0, allocator_->most_blocks(expected_, group) - left);
    if (spans_ && left > 0) pool_ = held(group).back().tier;
  }
  if (!spans_) promise(to_come);
  return cut_into;
}

std::optional<BlockId> BlockTable::cut_group_back(int64_t tokens, int group) {
  std::vector<BlockId>& blocks = blocks_[index_of(group)];
  const auto whole = static_cast<size_t>(tokens / kKvBlockTokens);
  const auto rest = static_cast<int32_t>(tokens % kKvBlockTokens);
  SPW_ASSERT(pool_);
  // An earlier cut already removed the partly used block.
  if (blocks.size() <= whole && rest > 0) return std::nullopt;
  const bool grows_by_blocks =
      !spans_ && (pool_ == allocator_->pools().front() || !allocator_->rule(group).keeps_all());
  // Otherwise the expected blocks were taken together, and stay, up to the first one that another
  // sequence holds as well.
  size_t left = whole + (rest > 0 ? 1 : 0);
  if (!grows_by_blocks) {
    const auto shared =
        std::find_if(blocks.begin() + static_cast<std::ptrdiff_t>(left), blocks.end(),
                     [&](BlockId id) { return allocator_->holders(id) > 1; });
    for (auto own = blocks.begin() + static_cast<std::ptrdiff_t>(left); own != shared; ++own)
      allocator_->forget_beyond(*own, 0);
    left = static_cast<size_t>(shared - blocks.begin());
  }
  std::optional<BlockId> cut_into;
  if (rest > 0 && allocator_->holders(blocks[whole]) > 1) {
    cut_into = blocks[whole];
    left = whole;
  } else if (rest > 0) {
    allocator_->forget_beyond(blocks[whole], rest);
  }
  while (blocks.size() > left) {
    if (blocks.back() != cut_into) allocator_->release(blocks.back());
    blocks.pop_back();
  }
  return cut_into;
}

void BlockTable::clear() {
  if (pool_) promise({});
  // Releases the last blocks first, so that they are evicted first: without those before them they
  // are of no use.
  for (int group = 0; group < allocator_->groups(); ++group) {
    const std::span<const BlockId> blocks = held(group);
    for (auto id = blocks.rbegin(); id != blocks.rend(); ++id) allocator_->release(*id);
  }
  blocks_ = {};
  released_ = {};
  checkpoint_.reset();
  pool_.reset();
  spans_ = false;
}

}  // namespace spillway
