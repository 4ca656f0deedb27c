// SPDX-License-Identifier: Apache-2.0
// Hands out KV block ids. Ids are apart from bytes, so that scheduling logic is tested without any
// memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/tier.h"
#include "kv/block_id.h"
#include "kv/block_key.h"
#include "tensor/kv_format.h"
#include "tensor/state_rule.h"

namespace spillway {

// What a pool has left, as numbers to plan with.
struct PoolRoom {
  int64_t free = 0;
  int64_t promised = 0;  // of these, what its sequences are expected to grow into
};

// Where the entry of a pool, or of a group, is in lists that have one for each.
constexpr size_t index_of(Tier pool) { return static_cast<size_t>(pool); }
constexpr size_t index_of(int group) { return static_cast<size_t>(group); }

// [group][index_of(pool)]
using PoolRooms = PerGroup<std::array<PoolRoom, kTierCount>>;

// The pools of one group of layers.
struct GroupPools {
  StateRule rule = {};
  // How many blocks there are, in the order of Tier; those that are not named have none. All groups
  // of a model have the same pools, of whatever size.
  std::vector<int32_t> pools = {};
};

// Blocks of each group, in order of position.
using GroupBlocks = PerGroup<std::vector<BlockId>>;

// What a sequence takes to hold so many tokens.
struct Reservation {
  Tier pool = Tier::kDevice;
  PerGroup<int64_t> blocks = {};    // to take
  PerGroup<int64_t> promised = {};  // blocks of it that are expected to come then
  // Then so many of each pool behind that: of a sequence that spans pools.
  PerGroup<std::array<int64_t, kTierCount>> beyond = {};
  // A second block of each recurrent group besides, on the device, for a copy of the state that the
  // sequence has there: of so many tokens.
  std::optional<int64_t> checkpoint = {};
};

// Not thread-safe (the engine's thread). Blocks are in pools: a group of layers has one for each
// memory that the cache has, which is called by it. The lowest free number of a pool goes first, so
// that a short run touches little memory, and blocks taken together lie together. Any block may be
// anybody's: which memory a sequence's are in is BlockTable's choice.
//
// Blocks have holders, who are counted. One that is full can be kept under a key: whoever begins
// with the same tokens finds it there and becomes a holder. Without holders it is free, and stays
// what it is until no other is: the one that was left longest ago then goes first.
class BlockAllocator {
 public:
  explicit BlockAllocator(int32_t blocks) : BlockAllocator(std::vector{blocks}) {}
  // `pools`: how many blocks there are, in the order of Tier; those that are not named have none.
  // `span_blocks`: a sequence that no pool can hold goes on in the next one behind a multiple of
  // this many blocks; 0: it does not.
  explicit BlockAllocator(const std::vector<int32_t>& pools, int64_t span_blocks = 0)
      : BlockAllocator(std::vector{GroupPools{.pools = pools}}, span_blocks, /*step_tokens=*/0) {}
  // For layers of several groups. `step_tokens`: the most tokens that a step brings to a sequence,
  // whose windows are given back between steps.
  BlockAllocator(const std::vector<GroupPools>& groups, int64_t span_blocks, int64_t step_tokens);

  int groups() const { return static_cast<int>(groups_.size()); }
  const StateRule& rule(int group) const { return groups_[index_of(group)].rule; }
  // Whether a group is recurrent: of a sequence only lengths are found at which its state was kept.
  bool has_states() const {
    return std::ranges::any_of(groups_, [](const Group& of) { return !of.rule.is_paged(); });
  }
  // The group whose blocks tell how full the cache is, to forecasts and to users: the first that
  // keeps all tokens in blocks, or the first one.
  int forecast_group() const { return forecast_group_; }
  // The pools that there are, in order.
  std::span<const Tier> pools() const { return std::span(kOrder).first(groups_[0].pools.size()); }
  // In all pools of all groups, or of one.
  int32_t total() const;
  int32_t free() const;
  int32_t free_of(int group) const;
  int32_t total(Tier pool, int group = 0) const {
    return static_cast<int32_t>(at(pool, group).blocks.size());
  }
  int32_t free(Tier pool, int group = 0) const {
    return static_cast<int32_t>(at(pool, group).heap.size() + at(pool, group).kept.size());
  }
  // The pool has so many blocks from now on, no fewer than are held. What is kept in those that
  // there are no more is evicted; those of them that are held go on, with all they have, under the
  // ids that are returned, in order.
  struct Move {
    BlockId from, to;
  };
  std::vector<Move> resize(Tier pool, int32_t blocks, int group = 0);
  // Free blocks of a pool that none of its sequences is expected to grow into.
  int64_t unpromised(Tier pool, int group = 0) const {
    return free(pool, group) - at(pool, group).promised;
  }
  int64_t span_blocks() const { return span_blocks_; }
  // Whether a sequence that has these blocks may go on with `next`: in the same pool, and one that
  // spans pools behind a whole run of them in a later one.
  bool can_follow(std::span<const BlockId> blocks, BlockId next, bool spans) const;
  // Blocks that a sequence of so many tokens holds of a group at most, if it is in one pool.
  int64_t most_blocks(int64_t tokens, int group) const {
    return rule(group).most_blocks(tokens, step_tokens_);
  }
  // Tokens of the longest sequence that there can be: in one of the pools, in that one, or in all
  // of them, where it may span pools.
  int64_t longest_in_one_pool() const;
  int64_t longest_in(Tier pool) const;
  int64_t longest() const;
  PoolRooms rooms() const;
  int32_t holders(BlockId id) const { return block(id).holders; }

  // nullopt when all of the pool are taken: a normal outcome, the scheduler then waits or preempts.
  [[nodiscard]] std::optional<BlockId> try_allocate(Tier pool = Tier::kDevice, int group = 0);
  // So many more (or fewer) free blocks of the pool are expected to be taken: a hint for those who
  // choose a pool, nothing is set aside.
  void promise(Tier pool, int64_t blocks, int group = 0) { at(pool, group).promised += blocks; }
  // One holder fewer. Throws kInternal for an id that has none.
  void release(BlockId id);

  // So many are free without anything kept in them, as far as there are: then they lie together.
  void make_room(Tier pool, int64_t blocks, int group = 0);

  // The block has this, beside what it had; false, and nothing changes, where one has it already.
  bool keep(BlockId id, const BlockContents& contents);
  bool keep(BlockId id, const BlockKey& key) { return keep(id, BlockContents{.key = key}); }
  // With the caller as one more holder.
  [[nodiscard]] std::optional<BlockId> try_find(const BlockKey& key);
  // The same without becoming one, and becoming one afterwards, as long as it was not given out.
  [[nodiscard]] std::optional<BlockId> try_peek(const BlockKey& key) const;
  void hold(BlockId id);
  // Nothing that is kept is wanted again.
  void forget_all();
  // Of what a block has, what says more than its first `tokens`: they will be written to.
  void forget_beyond(BlockId id, int32_t tokens);

  // Called when a block that is kept is given out for something else, with the most that it has:
  // its bytes are still there. Not by forget_all().
  using EvictionObserver = std::function<void(BlockId, const BlockContents&)>;
  void observe_evictions(EvictionObserver observer) { observer_ = std::move(observer); }
  // Of a pool: free blocks in which nothing is kept, and of the others those that will be given out
  // first, with what they have.
  int64_t unkept(Tier pool, int group = 0) const {
    return static_cast<int64_t>(at(pool, group).heap.size());
  }
  std::vector<std::pair<BlockId, BlockContents>> next_evictions(Tier pool, int64_t most,
                                                                int group = 0) const;

 private:
  static constexpr std::array<Tier, kTierCount> kOrder = {Tier::kDevice, Tier::kHost, Tier::kDisk};
  struct Block {
    int32_t holders = 0;
    std::vector<BlockContents> contents = {};  // of its first tokens, and last of all it has
    std::list<BlockId>::iterator kept = {};    // in its pool's list, without holders and with a key
  };
  struct Pool {
    std::vector<Block> blocks;  // by their numbers
    int64_t promised = 0;
    std::vector<BlockId> heap;  // free ones, a min-heap
    std::list<BlockId> kept;    // free, but for what they have: left longest ago first
  };
  struct Group {
    StateRule rule;
    std::vector<Pool> pools;  // by index_of()
  };
  Pool& at(Tier pool, int group) { return groups_[index_of(group)].pools[index_of(pool)]; }
  const Pool& at(Tier pool, int group) const {
    return groups_[index_of(group)].pools[index_of(pool)];
  }
  // Throw kInternal for an id of none.
  Block& block(BlockId id) { return at(id.tier, id.group).blocks[index_in_pool(id)]; }
  const Block& block(BlockId id) const { return at(id.tier, id.group).blocks[index_in_pool(id)]; }
  size_t index_in_pool(BlockId id) const {
    SPW_ASSERT(id.group < groups() && index_of(id.tier) < pools().size());
    SPW_ASSERT(id.number >= 0 && id.number < total(id.tier, id.group));
    return static_cast<size_t>(id.number);
  }
  // Entries of a block table for which a pool has room, if it is empty.
  int64_t most_entries(Tier pool, int64_t step_tokens) const;
  void add_free(BlockId id);
  void drop_keys(BlockId id);
  void evict(BlockId id);

  std::vector<Group> groups_;
  int forecast_group_ = 0;
  int64_t span_blocks_ = 0;
  int64_t step_tokens_ = 0;
  std::unordered_map<BlockKey, BlockId> by_key_;
  EvictionObserver observer_;
};

// A block that the allocator gave another id has that; `moves` are in order.
void rename_block(BlockId& block, std::span<const BlockAllocator::Move> moves);

// The blocks of one sequence in order of position, of each group of layers; gives them back when
// destroyed. Move-only. The allocator must outlive it.
//
// The entries of a group are as its rule says: a window's begin with placeholders for the blocks
// that release_behind() gave back. A recurrent group has one entry, its state; from take() of a
// checkpoint until release_behind() or cut_back() it has a second one, the checkpoint.
//
// Which memory they are in is a policy, and all of it is here (try_plan()): by their ids, any of
// them may be in any. They are all of one pool, where one can hold what is expected. A sequence
// that none can hold spans pools (where the allocator lets it): it grows into the first one by
// whole runs of span_blocks(), and goes on in the next when there is no room for another. The same
// entry of all paged groups is in the same memory, and all groups grow, or none does.
class BlockTable {
 public:
  // `expected` tokens in the end: the pool is chosen so that it has room for them beside what its
  // other sequences expect, and behind the first pool they are taken at once, so that they lie
  // together and move as one.
  explicit BlockTable(BlockAllocator& allocator, int64_t expected = 0)
      : allocator_(&allocator), expected_(expected) {}
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { clear(); }

  // At least so many tokens in the end. Only while it is empty.
  void expect(int64_t tokens) { expected_ = std::max(expected_, tokens); }
  // Will take its blocks from this pool, and begins with these of it, which it is counted as a
  // holder of, but for placeholders in front. Only while it is empty.
  void begin_in(Tier pool, GroupBlocks blocks = {});
  // Whether it is, or with `tokens` would be, in several pools.
  bool spans(int64_t tokens) const;
  // What growing to hold `tokens` tokens takes, where pools have that much room; nothing where
  // they have too little. `begun`: with the blocks that begin_in() would give it.
  [[nodiscard]] std::optional<Reservation> try_plan(int64_t tokens, const PoolRooms& rooms,
                                                    const GroupBlocks& begun = {}) const;
  // Takes what was planned, for which there is room.
  void take(const Reservation& reservation);
  // Grows to hold `tokens` tokens: all the blocks needed, or none (false).
  [[nodiscard]] bool try_reserve(int64_t tokens);
  // Gives back what no token reaches any more now that so many are computed, and the checkpoint.
  void release_behind(int64_t computed);
  // The most tokens, up to `tokens`, that cut_back() can leave, of more that are computed: with a
  // recurrent group those of the checkpoint. Nothing: blocks that the next token would reach, or
  // the state before it, are gone.
  [[nodiscard]] std::optional<int64_t> try_cut_end(int64_t tokens) const;
  // Holds so many tokens, which is what try_cut_end() returned; blocks behind go back where it
  // grows block by block. A block of a group that is cut into and that others hold goes, too: it is
  // returned, still held, for the caller to copy its first tokens to the next block that is taken,
  // and then to release. The checkpoint is a recurrent group's state from then on.
  [[nodiscard]] PerGroup<std::optional<BlockId>> cut_back(int64_t tokens);
  void clear();
  // Those of its blocks that the allocator gave other ids.
  void rename(std::span<const BlockAllocator::Move> moves);

  const std::vector<BlockId>& blocks(int group = 0) const { return blocks_[index_of(group)]; }
  // Its blocks without the placeholders.
  std::span<const BlockId> held(int group) const {
    return std::span(blocks_[index_of(group)]).subspan(released_[index_of(group)]);
  }
  int64_t promised(int group = 0) const { return promised_[index_of(group)]; }
  std::optional<Tier> pool() const { return pool_; }  // where it grows; nothing: not decided yet
  // Whether it has blocks there, or is to take some.
  bool uses(Tier pool) const;

 private:
  std::optional<Reservation> try_plan_spanning(int64_t tokens, const PoolRooms& rooms,
                                               const GroupBlocks& begun) const;
  std::optional<BlockId> cut_group_back(int64_t tokens, int group);
  // Gives back one of the two blocks of recurrent groups with a checkpoint: the first one, which is
  // the state that was, or the second.
  void drop_state(size_t entry);
  void promise(const PerGroup<int64_t>& blocks);
  int64_t entries(int group) const { return static_cast<int64_t>(blocks_[index_of(group)].size()); }

  BlockAllocator* allocator_;
  int64_t expected_;
  std::optional<Tier> pool_;
  bool spans_ = false;               // several pools
  PerGroup<int64_t> promised_ = {};  // blocks of it that are expected to come
  GroupBlocks blocks_ = {};
  PerGroup<size_t> released_ = {};  // placeholders, the first of blocks_
  // Tokens that the checkpoint is of; nothing: there is none.
  std::optional<int64_t> checkpoint_ = {};
};

}  // namespace spillway
