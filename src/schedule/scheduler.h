// SPDX-License-Identifier: Apache-2.0
// Decides which tokens of which requests make up the next step: continuous batching with chunked
// prefill.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kv/block_allocator.h"
#include "schedule/admission.h"

namespace spillway {

enum class RequestId : uint64_t {};

struct SchedulerLimits {
  int max_step_tokens =
      512;  // all sequences together; long prompts are cut into chunks of what is left
  AdmissionPolicy admission = {};
};

// A sequence's part of a step.
struct ScheduledChunk {
  RequestId id;
  int32_t start = 0;   // position of the first token
  int32_t tokens = 0;  // how many
  int32_t reused = 0;  // before these, of a sequence that begins: found in blocks of others
  bool last = false;   // reaches the newest known token: the next one can be sampled
  const std::vector<BlockId>* block_table = nullptr;  // valid until the next call
};

struct StepPlan {
  std::vector<ScheduledChunk> chunks;
  // Alone in the cache and out of blocks all the same: these end here.
  std::vector<RequestId> exhausted;
};

// Who knows which blocks have what a request begins with.
class PrefixSource {
 public:
  virtual ~PrefixSource() = default;
  // Gives `blocks`, which is empty, those that have the request's first tokens; how many tokens
  // these are, at least one fewer than it has.
  virtual int32_t begin(RequestId id, BlockTable& blocks) = 0;
};

// First come, first served. Sequences that generate go first (a token each), then prompts in
// chunks, then new requests. When blocks run out, the youngest running sequence loses its blocks
// and is computed again later. Not thread-safe.
class Scheduler {
 public:
  // `prefixes` may be null: everything is computed.
  Scheduler(BlockAllocator& allocator, const SchedulerLimits& limits,
            PrefixSource* prefixes = nullptr);

  // `tokens` are known: the prompt. `expected` in the end, 0 where nobody knows. An id comes once.
  void add(RequestId id, int32_t tokens, int64_t expected = 0);
  // One more token is known: the sampled one.
  void append(RequestId id);
  // Finished or cancelled, with `answer` tokens (not said: those appended, and the last one);
  // unknown ids are ignored.
  void remove(RequestId id, std::optional<int64_t> answer = std::nullopt);

  // All running sequences lose their blocks and are computed again: what the blocks held is lost.
  void preempt_all();

  // Picks the next step and counts its tokens as computed. Empty chunks: nothing to do.
  StepPlan next_step();

  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return static_cast<int>(waiting_.size()); }
  int64_t preemptions() const { return preemptions_; }

 private:
  struct Sequence {
    RequestId id;
    int32_t prompt = 0;
    int64_t expected = 0;  // tokens in the end; 0 where nobody knows
    int32_t known = 0;
    int32_t computed = 0;
    bool scheduled = false;  // in the step being made
    bool runs = false;       // else it waits
    bool admitted = false;   // now or before it was preempted
    BlockTable blocks;
  };
  using Sequences = std::list<Sequence>;
  // Whether what it lacks is more than its newest token.
  static bool is_in_prefill(const Sequence& sequence);
  int most_admissions() const;
  bool block_is_open(const Sequence& next);
  bool reserve_or_preempt(Sequence& sequence, int64_t tokens);
  void preempt_youngest();
  // The parts of a step; `budget`: the tokens that it still has room for.
  void schedule(Sequence& sequence, int32_t tokens, StepPlan& plan);
  void schedule_running(bool in_prefill, int32_t& budget, StepPlan& plan);
  void find_prefix(Sequence& sequence);
  void admit(int32_t& budget, StepPlan& plan);

  BlockAllocator& allocator_;
  SchedulerLimits limits_;
  PrefixSource* prefixes_;
  // A sequence changes from one list to the other without being moved itself.
  Sequences running_;  // oldest first
  Sequences waiting_;
  std::unordered_map<RequestId, Sequences::iterator> by_id_;
  int64_t preemptions_ = 0;
  int block_room_ = 0;  // sequences that may still join the block
  // Of sequences that ended or are expected to: their answers' tokens.
  int64_t answers_ = 0;
  int64_t answer_tokens_ = 0;
};

}  // namespace spillway
