// SPDX-License-Identifier: Apache-2.0
// What the next step computes, and which blocks of KV change hands for it.
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
  // Of these, the last ones that are drafts: they count as tokens of the sequence from apply() on,
  // until it is cut back to what turns out to be right.
  int32_t drafted = 0;
  int32_t reused = 0;  // before these, of a sequence that begins: found in blocks of others
  bool last = false;   // reaches the newest known token: the next one can be sampled
  // The tokens belong to an answer and were never computed before, drafts included. Else they are
  // of a prompt, or of a sequence that catches up after it was preempted.
  bool generates = false;
  Reservation reservation = {};  // the blocks that it takes for that
  // Valid from apply() until the next change of the scheduler: of the first group, and of all.
  const std::vector<BlockId>* block_table = nullptr;
  const BlockTable* table = nullptr;
};

// What a request begins with, and others have computed: of each group of layers.
struct FoundPrefix {
  GroupBlocks blocks = {};  // whole ones, to be shared, behind placeholders for what is not needed
  // Behind them: what comes from elsewhere (kv/kv_store.h) into blocks of its own, on the device.
  // All whole, but for the last where `tokens` ends in it.
  PerGroup<std::vector<BlockKey>> loads = {};
  // Behind all: its first tokens are the same, to be copied. A recurrent state is always copied.
  PerGroup<std::optional<BlockId>> partly = {};
  int32_t tokens = 0;      // all of these
  bool is_coming = false;  // much of the rest is being computed or read: it pays to wait for it
  // It will be coming, once these are asked for.
  PerGroup<std::vector<BlockKey>> fetch = {};
};

struct StepPlan {
  std::vector<ScheduledChunk> chunks;
  // Alone in the cache and out of blocks all the same: these end here.
  std::vector<RequestId> exhausted;
  // These lose their blocks first, in this order.
  std::vector<RequestId> preempted;
  // Of the chunks, the sequences that begin, in order.
  struct Beginning {
    size_t chunk = 0;
    Tier pool = Tier::kDevice;
    FoundPrefix found = {};
  };
  std::vector<Beginning> beginning;
  bool is_full = false;  // the next one would have begun, had there been room
  // The forecast had no room for these, and others behind them begin.
  std::vector<RequestId> passed_over;
  // What is to be brought to host memory for those that wait for it.
  struct Fetch {
    RequestId id;
    PerGroup<std::vector<BlockKey>> keys;
  };
  std::vector<Fetch> fetches;
  // Blocks whose contents are copied before the step, also a recurrent state to its checkpoint: set
  // by apply().
  struct Copy {
    BlockId from, to;  // of one pool
  };
  std::vector<Copy> copies;
  // Blocks that are filled from elsewhere before the step: set by apply().
  struct Load {
    BlockKey key = {};
    DeviceBlock to;
    size_t beginning = 0;  // whose, of those above
  };
  std::vector<Load> loads;
};

}  // namespace spillway
