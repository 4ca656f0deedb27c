// SPDX-License-Identifier: Apache-2.0
// How much of a sequence's beginning is there already: the longest length at which every group of
// layers (model/state_group.h) has its state.
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
// recurrent group a state that was kept at exactly that length. Blocks are looked for in the pools,
// and behind those of a pool where `is_stored` says. Uses the allocator as it is at each call.
class PrefixSearch {
 public:
  struct Sequence {
    std::span<const int32_t> tokens = {};
    size_t most = 0;  // tokens that may be found
    BlockKey first_key = {};
    std::span<const BlockKey> keys = {};  // of the whole blocks of these tokens, in the first group
    bool spans = false;                   // it may be in several pools
    // It was preempted, so that a part of a block may be stored, which no other sequence needs.
    bool has_stored_tail = false;
  };
  PrefixSearch(const BlockAllocator& allocator, const Sequence& sequence);

  // Whether the block with that key of a group can be loaded to the device; null: none can.
  using IsStored = std::function<bool(const BlockKey& key, int group)>;
  FoundPrefix longest(const IsStored& is_stored = nullptr) const;

 private:
  // What a group has before a length.
  struct Entries {
    int group = 0;
    std::vector<BlockId> blocks = {};
    std::vector<BlockKey> loads = {};
  };
  struct Candidate {
    std::vector<Entries> windows = {};
    // The last entry that a window needs and that is not there, so that no length up to here will
    // do for which it is needed; `whole`: all are somewhere, but not in the memories for this one.
    std::optional<size_t> missing = {};
  };
  BlockKey key(size_t block, int group) const { return group_key(of_.keys[block], group); }
  // Where an entry of `anchor` is; what is loaded comes to the device.
  static Tier tier_at(const std::vector<BlockId>& anchor, size_t entry) {
    return entry < anchor.size() ? anchor[entry].tier : Tier::kDevice;
  }
  // Of windows, before the block `whole` of a sequence that has `tokens` tokens.
  Candidate look_at(size_t whole, size_t tokens, const IsStored& is_stored) const;
  // Returns Candidate::missing. Each entry must be in the memory that `anchor` says, if
  // it is not null.
  std::optional<size_t> look_for(Entries& window, size_t whole, size_t tokens,
                                 const IsStored& is_stored,
                                 const std::vector<BlockId>* anchor) const;
  FoundPrefix found_in(Candidate&& candidate, size_t whole) const;
  std::optional<FoundPrefix> try_with_tail(size_t whole, const IsStored& is_stored) const;
  // Whether it goes on there, where the ends of add_ends() come to.
  static bool ends_on_device(const FoundPrefix& found);
  // Adds what paged or recurrent groups have under the key of exactly these tokens: the block that
  // they end in, or the state.
  bool add_ends(const BlockKey& tokens, bool paged, const IsStored& is_stored,
                FoundPrefix& found) const;

  const BlockAllocator& allocator_;
  Sequence of_;
  // Of each full group its first blocks, as far as pools have them.
  std::vector<Entries> full_;
};

}  // namespace spillway
