// SPDX-License-Identifier: Apache-2.0
// The plan of the next step: what it computes, and which KV blocks it takes and releases.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/block_allocator.h"
#include "kv/block_key.h"
#include "schedule/request_id.h"

namespace spillway {

// A sequence's part of a step.
struct ScheduledChunk {
  RequestId id;
  int32_t start = 0;   // position of the first token
  int32_t tokens = 0;  // how many
  // The last of these tokens are drafts: they count as tokens of the sequence from apply() on,
  // until it is cut back to the accepted ones.
  int32_t drafted = 0;
  // Tokens before these that a beginning sequence found in other sequences' blocks.
  int32_t reused = 0;
  bool last = false;  // reaches the newest known token, so that the next one can be sampled
  // The tokens, including drafts, belong to an answer and were never computed before. Otherwise
  // they belong to a prompt, or to a sequence that is computed again after it was preempted.
  bool generates = false;
  Reservation reservation = {};  // the blocks that it takes for these tokens
  // The blocks of the first group, and of all groups. Valid from apply() until the
  // scheduler changes.
  const std::vector<BlockId>* block_table = nullptr;
  const BlockTable* table = nullptr;
};

// The beginning of a request that other sequences have computed, in each group of layers.
struct FoundPrefix {
  GroupBlocks blocks = {};  // whole shared blocks, after placeholders for those not needed
  // After them, blocks that are loaded from the KV store, which keeps blocks beyond the pools
  // (kv/kv_store.h), into the sequence's own device blocks. All are whole, except the last if
  // `tokens` ends in it.
  PerGroup<std::vector<BlockKey>> loads = {};
  // After both, a block that begins with the same tokens, which are copied. A recurrent state is
  // always copied.
  PerGroup<std::optional<BlockId>> partly = {};
  int32_t tokens = 0;  // number of tokens in all of these
  bool is_in_flight =
      false;  // much of the rest is being computed or read, and is worth waiting for
  // Blocks that must be fetched before they can be loaded; `is_in_flight` is then set.
  PerGroup<std::vector<BlockKey>> fetch = {};
};

struct StepPlan {
  std::vector<ScheduledChunk> chunks;
  // Sequences that end because they are out of blocks although they have the cache to themselves.
  std::vector<RequestId> exhausted;
  // Sequences that lose their blocks before anything else, in this order.
  std::vector<RequestId> preempted;
  // The sequences of the chunks that begin in this step, in order.
  struct Beginning {
    size_t chunk = 0;
    Tier pool = Tier::kDevice;
    FoundPrefix found = {};
  };
  std::vector<Beginning> beginning;
  bool is_full = false;  // whether the next sequence was not admitted for lack of room
  // Sequences for which the forecast had no room, and which were overtaken by later ones.
  std::vector<RequestId> passed_over;
  // Blocks to bring to host memory for requests that wait for them.
  struct Fetch {
    RequestId id;
    PerGroup<std::vector<BlockKey>> keys;
  };
  std::vector<Fetch> fetches;
  // Blocks whose contents are copied before the step, including recurrent states to their
  // checkpoints. Set by apply().
  struct Copy {
    BlockId from, to;  // both in one pool
  };
  std::vector<Copy> copies;
  // Blocks that are loaded from the store before the step. Set by apply().
  struct Load {
    BlockKey key = {};
    DeviceBlock to;
    size_t beginning = 0;  // index in `beginning`
  };
  std::vector<Load> loads;
};

}  // namespace spillway
