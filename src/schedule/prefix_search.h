// SPDX-License-Identifier: Apache-2.0
// Finds how much of a sequence's beginning is already computed: the longest length at which every
// group of layers (model/state_group.h) has its state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kv/block_allocator.h"
#include "kv/block_key.h"
#include "schedule/step_plan.h"

namespace spillway {

// A full group needs all blocks before a length, a window those that the next token reaches, and a
// recurrent group a state that was kept at exactly that length. Blocks are searched in the pools
// and, after those of a pool, with `is_stored` in the KV stores (kv/kv_store.h), which keep blocks
// beyond the pools. Uses the allocator as it is at each call.
class PrefixSearch {
 public:
  struct Sequence {
    std::span<const int32_t> tokens = {};
    size_t most = 0;  // tokens that may be found
    BlockKey first_key = {};
    // The keys of the whole blocks of these tokens, in the first group.
    std::span<const BlockKey> keys = {};
    bool spans = false;  // it may be in several pools
    // The sequence was preempted, so a partial block may be stored, which no other sequence needs.
    bool has_stored_tail = false;
  };
  PrefixSearch(const BlockAllocator& allocator, const Sequence& sequence);

  // Whether the block with that key of a group can be loaded to the device; null: none can.
  using IsStored = std::function<bool(const BlockKey& key, int group)>;
  FoundPrefix longest(const IsStored& is_stored = nullptr) const;

 private:
  // The state that a group has before a length.
  struct Entries {
    int group = 0;
    std::vector<BlockId> blocks = {};
    std::vector<BlockKey> loads = {};
  };
  struct Candidate {
    std::vector<Entries> windows = {};
    // The last entry that a window needs and that does not exist: no length that needs this entry
    // is possible. `whole` if all entries exist, but not in the memories that this length requires.
    std::optional<size_t> missing = {};
  };
  BlockKey key(size_t block, int group) const { return group_key(of_.keys[block], group); }
  // The memory of an entry of `anchor`; entries after its end are loaded to the device.
  static Tier tier_at(const std::vector<BlockId>& anchor, size_t entry) {
    return entry < anchor.size() ? anchor[entry].tier : Tier::kDevice;
  }
  // Looks up the windows' entries before block `whole`, for a prefix of `tokens` tokens.
  Candidate look_at(size_t whole, size_t tokens, const IsStored& is_stored) const;
  // Returns Candidate::missing. Each entry must be in the memory that `anchor` says, unless
  // that is null.
  std::optional<size_t> look_for(Entries& window, size_t whole, size_t tokens,
                                 const IsStored& is_stored,
                                 const std::vector<BlockId>* anchor) const;
  FoundPrefix found_in(Candidate&& candidate, size_t whole) const;
  std::optional<FoundPrefix> try_with_tail(size_t whole, const IsStored& is_stored) const;
  // Whether the prefix ends on the device, to which add_ends() copies or loads.
  static bool ends_on_device(const FoundPrefix& found);
  // Adds what paged (or recurrent) groups have under the key of exactly these tokens: the block in
  // which they end, or the state.
  bool add_ends(const BlockKey& tokens, bool paged, const IsStored& is_stored,
                FoundPrefix& found) const;

  const BlockAllocator& allocator_;
  Sequence of_;
  // The first blocks of each full group, as far as they are in the pools.
  std::vector<Entries> full_;
};

}  // namespace spillway
