// SPDX-License-Identifier: Apache-2.0
// Decides which tokens of which requests make up the next step: continuous batching with chunked
// prefill.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <vector>

#include "kv/block_allocator.h"

namespace spillway {

enum class RequestId : uint64_t {};

struct SchedulerLimits {
  int max_step_tokens =
      512;  // all sequences together; long prompts are cut into chunks of what is left
  int max_sequences = 256;  // running at once
  // Newcomers of a step; 0: all there is room for. The diagonal schedule staggers them, so that
  // sequences sit at different tokens and their KV does not peak together.
  int max_admissions = 0;
};

// A sequence's part of a step.
struct ScheduledChunk {
  RequestId id;
  int32_t start = 0;   // position of the first token
  int32_t tokens = 0;  // how many
  bool last = false;   // reaches the newest known token: the next one can be sampled
  const std::vector<BlockId>* block_table = nullptr;  // valid until the next call
};

struct StepPlan {
  std::vector<ScheduledChunk> chunks;
  // Alone in the cache and out of blocks all the same: these end here.
  std::vector<RequestId> exhausted;
};

// First come, first served. Sequences that generate go first (a token each), then prompts in
// chunks, then new requests. When blocks run out, the youngest running sequence loses its blocks
// and is computed again later. Not thread-safe.
class Scheduler {
 public:
  Scheduler(BlockAllocator& allocator, const SchedulerLimits& limits);

  // `tokens` are known: the prompt. `expected` in the end, 0 where nobody knows.
  void add(RequestId id, int32_t tokens, int64_t expected = 0);
  // One more token is known: the sampled one.
  void append(RequestId id);
  // Finished or cancelled; unknown ids are ignored.
  void remove(RequestId id);

  // Picks the next step and counts its tokens as computed. Empty chunks: nothing to do.
  StepPlan next_step();

  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return static_cast<int>(waiting_.size()); }
  int64_t preemptions() const { return preemptions_; }

 private:
  struct Sequence {
    RequestId id;
    int32_t known = 0;
    int32_t computed = 0;
    bool scheduled = false;  // in the step being made
    BlockTable blocks;
  };
  Sequence* find(RequestId id);
  bool reserve_or_preempt(Sequence& sequence, int64_t tokens);
  void preempt_youngest();
  void schedule(Sequence& sequence, int32_t tokens, StepPlan& plan);

  BlockAllocator& allocator_;
  SchedulerLimits limits_;
  std::list<Sequence> running_;  // oldest first
  std::deque<Sequence> waiting_;
  int64_t preemptions_ = 0;
};

}  // namespace spillway
