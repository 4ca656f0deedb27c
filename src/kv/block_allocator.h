// SPDX-License-Identifier: Apache-2.0
// Allocates KV block ids. Ids are separate from bytes, so that scheduling logic can be tested
// without any memory.
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

// The room left in a pool, as numbers to plan with.
struct PoolRoom {
  int64_t free = 0;
  int64_t promised = 0;  // part of `free` that the pool's sequences are expected to grow into
};

// The index of a pool, or of a group, in arrays that have one entry for each.
constexpr size_t index_of(Tier pool) { return static_cast<size_t>(pool); }
constexpr size_t index_of(int group) { return static_cast<size_t>(group); }

// Indexed by [group][index_of(pool)].
using PoolRooms = PerGroup<std::array<PoolRoom, kTierCount>>;

// The pools of one group of layers.
struct GroupPools {
  StateRule rule = {};
  // The numbers of blocks, in the order of Tier; pools that are not listed have none. All groups of
  // a model have the same pools, each with its own number of blocks.
  std::vector<int32_t> pools = {};
};

// The blocks of each group, in order of position.
using GroupBlocks = PerGroup<std::vector<BlockId>>;

// The blocks that a sequence takes to hold a number of tokens.
struct Reservation {
  Tier pool = Tier::kDevice;
  PerGroup<int64_t> blocks = {};    // to take
  PerGroup<int64_t> promised = {};  // blocks of `pool` that it is expected to take later
  // For a sequence that spans pools: the blocks that it then takes from each later pool.
  PerGroup<std::array<int64_t, kTierCount>> beyond = {};
  // If set, the sequence also takes a second device block of each recurrent group, a checkpoint: it
  // holds a copy of the state after this many tokens.
  std::optional<int64_t> checkpoint = {};
};

// Allocates blocks from pools. Each group of layers has one pool for each memory of the cache,
// named by that memory's Tier. The lowest free number of a pool is given out first, so that a short
// run touches little memory, and blocks that are taken together lie together. A sequence may use
// any blocks; BlockTable chooses their memory. Not thread-safe (used by the engine's thread).
//
// A block counts its holders. A block can be kept under keys: a sequence that begins with the same
// tokens finds it and becomes a holder. Without holders a block is free but keeps its contents
// until it is given out again; the least recently released block goes first.
class BlockAllocator {
 public:
  explicit BlockAllocator(int32_t blocks) : BlockAllocator(std::vector{blocks}) {}
  // `pools`: the numbers of blocks, in the order of Tier; pools that are not listed have none.
  // `span_blocks`: a sequence that no single pool can hold continues in the next pool after a
  // multiple of this many blocks; with 0 it may not span pools.
  explicit BlockAllocator(const std::vector<int32_t>& pools, int64_t span_blocks = 0)
      : BlockAllocator(std::vector{GroupPools{.pools = pools}}, span_blocks, /*step_tokens=*/0) {}
  // The allocator of a model with several groups of layers. `step_tokens`: the most tokens that a
  // step adds to a sequence, whose windows are released between steps.
  BlockAllocator(const std::vector<GroupPools>& groups, int64_t span_blocks, int64_t step_tokens);

  int groups() const { return static_cast<int>(groups_.size()); }
  const StateRule& rule(int group) const { return groups_[index_of(group)].rule; }
  // Whether a group is recurrent: a prefix is then found only at lengths at which its state was
  // kept.
  bool has_states() const {
    return std::ranges::any_of(groups_, [](const Group& of) { return !of.rule.is_paged(); });
  }
  // The group whose blocks say how full the cache is, for forecasts and in reports to users: the
  // first group that keeps all tokens in blocks, else group 0.
  int forecast_group() const { return forecast_group_; }
  // The pools that exist, in the order of Tier.
  std::span<const Tier> pools() const { return std::span(kOrder).first(groups_[0].pools.size()); }
  // The blocks in all pools of all groups, or of one group.
  int32_t total() const;
  int32_t free() const;
  int32_t free_of(int group) const;
  int32_t total(Tier pool, int group = 0) const {
    return static_cast<int32_t>(at(pool, group).blocks.size());
  }
  int32_t free(Tier pool, int group = 0) const {
    return static_cast<int32_t>(at(pool, group).heap.size() + at(pool, group).kept.size());
  }
  // Gives a pool a new number of blocks, which must not be less than the number of held ones.
  // Contents that are kept in removed blocks are evicted. Held blocks among the removed ones get
  // other ids, with all their contents and holders; these moves are returned in ascending order of
  // `from`.
  struct Move {
    BlockId from, to;
  };
  std::vector<Move> resize(Tier pool, int32_t blocks, int group = 0);
  // Free blocks of a pool that none of its sequences is expected to grow into.
  int64_t unpromised(Tier pool, int group = 0) const {
    return free(pool, group) - at(pool, group).promised;
  }
  int64_t span_blocks() const { return span_blocks_; }
  // Whether a sequence that has these blocks may continue with `next`: it must be in the same pool
  // or, for a sequence that spans pools, in a later pool after whole runs of span_blocks().
  bool can_follow(std::span<const BlockId> blocks, BlockId next, bool spans) const;
  // The most blocks of a group that a sequence of this many tokens holds, if it is in one pool.
  int64_t most_blocks(int64_t tokens, int group) const {
    return rule(group).most_blocks(tokens, step_tokens_);
  }
  // Tokens of the longest possible sequence: in the best single pool, in the given pool, or in all
  // pools together if sequences may span pools.
  int64_t longest_in_one_pool() const;
  int64_t longest_in(Tier pool) const;
  int64_t longest() const;
  PoolRooms rooms() const;
  int32_t holders(BlockId id) const { return block(id).holders; }

  // Returns nullopt if all blocks of the pool are held, a normal outcome: the scheduler then waits
  // or preempts.
  [[nodiscard]] std::optional<BlockId> try_allocate(Tier pool = Tier::kDevice, int group = 0);
  // Counts this many more (or fewer) free blocks of the pool as expected to be taken. This is a
  // hint for choosing a pool; no blocks are set aside.
  void promise(Tier pool, int64_t blocks, int group = 0) { at(pool, group).promised += blocks; }
  // Removes one holder. Throws kInternal for an id that has none.
  void release(BlockId id);

  // Evicts kept blocks until this many free ones have no contents, or none is left to evict: blocks
  // that are taken then lie together.
  void make_room(Tier pool, int64_t blocks, int group = 0);

  // Adds contents to those that the block already has. Returns false, and changes nothing, if a
  // block is already kept under that key.
  bool keep(BlockId id, const BlockContents& contents);
  bool keep(BlockId id, const BlockKey& key) { return keep(id, BlockContents{.key = key}); }
  // Returns the block that is kept under the key, and makes the caller one more holder.
  [[nodiscard]] std::optional<BlockId> try_find(const BlockKey& key);
  // try_peek() finds a block without making the caller a holder; hold() makes the caller a holder
  // later, as long as the block has not been given out again.
  [[nodiscard]] std::optional<BlockId> try_peek(const BlockKey& key) const;
  void hold(BlockId id);
  // Drops all contents; nothing that is kept now will be found again.
  void forget_all();
  // Drops contents of a block that cover more than its first `tokens` tokens, because the positions
  // after those will be overwritten.
  void forget_beyond(BlockId id, int32_t tokens);

  // The observer is called when a kept block is evicted, with those of its contents that cover most
  // tokens; its bytes are still intact then. forget_all() does not call it.
  using EvictionObserver = std::function<void(BlockId, const BlockContents&)>;
  void observe_evictions(EvictionObserver observer) { observer_ = std::move(observer); }
  // unkept() is the number of free blocks of a pool without contents; next_evictions() lists the
  // kept ones that will be given out first, with their contents.
  int64_t unkept(Tier pool, int group = 0) const {
    return static_cast<int64_t>(at(pool, group).heap.size());
  }
  std::vector<std::pair<BlockId, BlockContents>> next_evictions(Tier pool, int64_t most,
                                                                int group = 0) const;

 private:
  static constexpr std::array<Tier, kTierCount> kOrder = {Tier::kDevice, Tier::kHost, Tier::kDisk};
  struct Block {
    int32_t holders = 0;
    // Each covers a prefix of the block, the last one the most tokens.
    std::vector<BlockContents> contents = {};
    // Its place in the pool's list, if it has contents and no holders.
    std::list<BlockId>::iterator kept = {};
  };
  struct Pool {
    std::vector<Block> blocks;  // by their numbers
    int64_t promised = 0;
    std::vector<BlockId> heap;  // free blocks without contents, a min-heap
    std::list<BlockId> kept;    // free blocks with contents, least recently released first
  };
  struct Group {
    StateRule rule;
    std::vector<Pool> pools;  // by index_of()
  };
  Pool& at(Tier pool, int group) { return groups_[index_of(group)].pools[index_of(pool)]; }
  const Pool& at(Tier pool, int group) const {
    return groups_[index_of(group)].pools[index_of(pool)];
  }
  // These throw kInternal for an id that is not in any pool.
  Block& block(BlockId id) { return at(id.tier, id.group).blocks[index_in_pool(id)]; }
  const Block& block(BlockId id) const { return at(id.tier, id.group).blocks[index_in_pool(id)]; }
  size_t index_in_pool(BlockId id) const {
    SPW_ASSERT(id.group < groups() && index_of(id.tier) < pools().size());
    SPW_ASSERT(id.number >= 0 && id.number < total(id.tier, id.group));
    return static_cast<size_t>(id.number);
  }
  // The most entries of a block table for which the pool has room when it is empty.
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

// Replaces the id of a block that the allocator has moved by its new one; `moves` is sorted by
// `from`.
void rename_block(BlockId& block, std::span<const BlockAllocator::Move> moves);

// The blocks of one sequence in order of position, for each group of layers; the destructor
// releases them. Move-only. The allocator must outlive it.
//
// The entries of a group follow its rule: a window's begin with placeholders for the blocks that
// release_behind() released. A recurrent group has one entry, its state; after a reservation with a
// checkpoint it has a second one, the checkpoint, until release_behind() or cut_back().
//
// try_plan() holds the whole policy of which memory the blocks are in; by their ids, any of them
// could be in any memory. All are in one pool if that can hold the expected tokens. A sequence that
// no pool can hold spans pools (if the allocator allows it): it grows into the first one by whole
// runs of span_blocks(), and continues in the next pool when there is no room for another run. The
// same entry of all paged groups is in the same memory, and either all groups grow or none does.
class BlockTable {
 public:
  // `expected`: the tokens that the sequence is expected to have in the end. The pool is chosen so
  // that it has room for them beside what its other sequences are expected to take. In pools after
  // the first one, all expected blocks are taken together, so that they lie together and move
  // as one.
  explicit BlockTable(BlockAllocator& allocator, int64_t expected = 0)
      : allocator_(&allocator), expected_(expected) {}
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { clear(); }

  // Raises the expected number of tokens. Only while the table is empty.
  void expect(int64_t tokens) { expected_ = std::max(expected_, tokens); }
  // Makes the table take its blocks from this pool and begin with `blocks`, of which (except
  // leading placeholders) the caller has already made it a holder. Only while the table is empty.
  void begin_in(Tier pool, GroupBlocks blocks = {});
  // Whether the sequence is, or with `tokens` tokens would be, in several pools.
  bool spans(int64_t tokens) const;
  // Plans what growing to `tokens` tokens takes; nullopt if the pools have too little room.
  // `begun`: plans as if begin_in() had given it these blocks.
  [[nodiscard]] std::optional<Reservation> try_plan(int64_t tokens, const PoolRooms& rooms,
                                                    const GroupBlocks& begun = {}) const;
  // Takes the planned blocks; there must be room for them.
  void take(const Reservation& reservation);
  // Grows to hold `tokens` tokens. Takes all the blocks needed and returns true, or takes none and
  // returns false.
  [[nodiscard]] bool try_reserve(int64_t tokens);
  // Releases blocks that no token can reach any more after `computed` tokens, and the checkpoint.
  void release_behind(int64_t computed);
  // The most tokens, up to `tokens`, to which cut_back() can shorten the computed ones; with a
  // recurrent group these are the checkpoint's. Returns nullopt if blocks that the next token would
  // reach, or the state before it, have been released.
  [[nodiscard]] std::optional<int64_t> try_cut_end(int64_t tokens) const;
  // Shortens the sequence to `tokens`, a result of try_cut_end(). Blocks after that are released if
  // the sequence grows block by block. If the last block is only partly left and has other holders,
  // it is removed, too: it is returned, still held, so that the caller can copy its first tokens to
  // the next block that is taken, and then release it. The checkpoint becomes the state of a
  // recurrent group.
  [[nodiscard]] PerGroup<std::optional<BlockId>> cut_back(int64_t tokens);
  void clear();
  // Replaces the ids of blocks that the allocator has moved.
  void rename(std::span<const BlockAllocator::Move> moves);

  const std::vector<BlockId>& blocks(int group = 0) const { return blocks_[index_of(group)]; }
  // The group's blocks without the placeholders.
  std::span<const BlockId> held(int group) const {
    return std::span(blocks_[index_of(group)]).subspan(released_[index_of(group)]);
  }
  int64_t promised(int group = 0) const { return promised_[index_of(group)]; }
  std::optional<Tier> pool() const { return pool_; }  // where it grows; nullopt: not decided yet
  // Whether the sequence has blocks in that pool, or is to take some there.
  bool uses(Tier pool) const;

 private:
  std::optional<Reservation> try_plan_spanning(int64_t tokens, const PoolRooms& rooms,
                                               const GroupBlocks& begun) const;
  std::optional<BlockId> cut_group_back(int64_t tokens, int group);
  // Releases one of the two blocks of recurrent groups with a checkpoint: entry 0 is the current
  // state, entry 1 the checkpoint.
  void drop_state(size_t entry);
  void promise(const PerGroup<int64_t>& blocks);
  int64_t entries(int group) const { return static_cast<int64_t>(blocks_[index_of(group)].size()); }

  BlockAllocator* allocator_;
  int64_t expected_;
  std::optional<Tier> pool_;
  bool spans_ = false;               // whether it is in several pools
  PerGroup<int64_t> promised_ = {};  // blocks of `pool_` that it is expected to take later
  GroupBlocks blocks_ = {};
  PerGroup<size_t> released_ = {};  // number of placeholders at the beginning of blocks_
  // The number of tokens after which the checkpoint was taken; nullopt: there is no checkpoint.
  std::optional<int64_t> checkpoint_ = {};
};

}  // namespace spillway
