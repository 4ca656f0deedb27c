// SPDX-License-Identifier: Apache-2.0
// Decides which tokens of which requests make up the next step: continuous batching with chunked
// prefill.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/block_allocator.h"
#include "schedule/policies.h"
#include "schedule/request_id.h"
#include "schedule/step_plan.h"
#include "schedule/user_turns.h"

namespace spillway {

struct SchedulerLimits {
  // All sequences together; long prompts are cut into chunks of what is left.
  int max_step_tokens = 512;
  // The most tokens of prompts in a step in which other sequences generate, because these wait for
  // them; 0: as many as max_step_tokens.
  int max_prompt_tokens = 0;
  // The most rows of logits; a sequence whose prompt is scored has one for each of its tokens. 0:
  // max_step_tokens.
  int max_logit_rows = 0;
  AdmissionPolicy admission = {};
};

// Finds the KV blocks that a request can begin with.
class PrefixSource {
 public:
  virtual ~PrefixSource() = default;
  // Returns blocks of one pool (of several, if the sequence spans pools), on the device where
  // something is loaded. They cover the same tokens in all groups, and leave at least one to
  // compute. Called again in each step until the request has begun. `beginning`: requests that
  // begin in the same step; what these will compute counts as in flight.
  virtual FoundPrefix find(RequestId id, std::span<const RequestId> beginning) const = 0;
};

struct NewSequence {
  RequestId id{};
  int32_t tokens = 0;    // known ones: the prompt
  int64_t expected = 0;  // tokens in the end, 0: unknown
  // Predicted tokens in the end, for which room is promised. 0: no prediction.
  int64_t predicted = 0;
  int priority = 0;  // lower ones matter more
  uint64_t client = 0;
  uint64_t user = 0;    // one of the client's users
  bool scored = false;  // whether logits of every token are wanted
};

// Schedules sequences that generate first (with the tokens that are new since the last sampling),
// then prompts in chunks, then new requests, and drafts with what is left. When blocks run out, a
// running sequence is preempted and computed again later. The policies decide which one, and which
// requests begin when. Not thread-safe.
class Scheduler {
 public:
  // `prefixes` may be null: then everything is computed.
  Scheduler(BlockAllocator& allocator, const SchedulerLimits& limits,
            const PrefixSource* prefixes = nullptr, SchedulingPolicies policies = {});

  // An id may be added only once.
  void add(const NewSequence& sequence);
  void add(RequestId id, int32_t tokens, int64_t expected = 0) {
    add({.id = id, .tokens = tokens, .expected = expected});
  }
  // Makes more tokens known: the sampled one, or several that are to be computed next.
  void append(RequestId id, int32_t tokens = 1);
  // Proposes draft tokens for the next step that computes all known tokens of a sequence that
  // generates. The step takes this many or fewer: only from room that nothing else wants, and
  // without preempting a sequence. Holds for one step; at most kMostCutBack. With a recurrent
  // group there are no drafts if no device block is free for the checkpoint, or the state is in
  // another memory.
  void propose(RequestId id, int32_t drafts);
  // Removes the newest known tokens: at most kMostCutBack, and none of the prompt. The computed KV
  // of the others stays, and append() continues the sequence. Blocks after them are released. A
  // block that is then partly used keeps no key for more than its remaining tokens and, if it has
  // other holders, is copied before the next step writes to it. With a recurrent group the sequence
  // returns to where the last step began, if that had drafts; the next step computes the tokens
  // after that again.
  //
  // Window groups keep what is reachable from kMostCutBack tokens before the farthest computed one.
  // If repeated cuts reach blocks that were released, or there is no checkpoint, the sequence is
  // preempted (the result is false) and is computed again: any cut is valid, whatever came before.
  // Drafts of the last step can always be cut off without preemption.
  bool cut_back(RequestId id, int32_t tokens);
  // Removes a finished or cancelled sequence. `answer`: its tokens (default: the appended ones and
  // the last one). Unknown ids are ignored.
  void remove(RequestId id, std::optional<int64_t> answer = std::nullopt);

  // Preempts all running sequences, because the contents of their blocks are lost.
  void preempt_all();

  // Chooses sequences to preempt, in order, until the others hold at most `blocks` blocks
  // of a pool.
  std::vector<RequestId> choose_preempted(Tier pool, int64_t blocks, int group = 0) const;
  void preempt(std::span<const RequestId> ids);
  // Replaces the ids of running sequences' blocks that the allocator has moved.
  void rename(std::span<const BlockAllocator::Move> moves);

  // Releases checkpoints, and blocks that no token of their sequence reaches any more, such as
  // those that a window has passed. Call it once before each step.
  void release_behind();
  // Plans the next step without changing anything. No chunks means that there is nothing to do.
  StepPlan prepare() const;
  // Takes and releases blocks as the plan says, which must have been prepared after the last
  // change, and counts its tokens as computed. Blocks to be copied stay held until
  // release_copies().
  void apply(StepPlan& plan);
  void release_copies(const StepPlan& plan);
  StepPlan next_step() {
    release_behind();
    StepPlan plan = prepare();
    apply(plan);
    return plan;
  }

  // The blocks of a running sequence, valid until the next change.
  const BlockTable& table_of(RequestId id) { return at(id).blocks; }
  const std::vector<BlockId>& blocks_of(RequestId id, int group = 0) {
    return at(id).blocks.blocks(group);
  }
  int32_t computed_of(RequestId id) { return at(id).computed; }
  // Whether a sequence is, or with one more token would be, in several pools.
  bool spans(RequestId id) const;

  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return static_cast<int>(waiting_.size()); }
  // The running sequences, then the waiting ones in the order in which they begin: `most` in all,
  // but always all that run.
  std::vector<SequenceView> at_work_and_next(int most) const;
  // Sequences that have begun and not ended, including preempted ones, which wait.
  std::vector<RequestId> begun() const;
  // Whether one sequence has begun.
  bool has_begun(RequestId id) const { return by_id_.at(id)->admitted; }
  int64_t preemptions() const { return preemptions_; }
  // Preemptions of sequences that had exceeded their prediction.
  int64_t exceeded_preemptions() const { return exceeded_preemptions_; }
  // Tokens that were computed again after a preemption, or after a return to a checkpoint.
  int64_t recomputed_tokens() const { return recomputed_tokens_; }
  // How often a sequence exceeded its prediction and was promised more room.
  int64_t extensions() const { return extensions_; }

 private:
  struct Sequence;
  using Sequences = std::list<Sequence>;
  // The place of a waiting sequence. Preempted ones come first, in the order in which they began.
  struct Place {
    bool is_new = true;
    double rank = 0;
    uint64_t arrival = 0;
    RequestId id{};
    auto operator<=>(const Place&) const = default;
  };
  struct Sequence {
    NewSequence given;
    int32_t known = 0;
    int32_t fresh = 0;     // known tokens appended since the last one was sampled
    int32_t proposed = 0;  // number of drafts proposed for the next step
    int32_t drafted = 0;   // known tokens that are drafts of the current step
    int32_t computed = 0;
    int32_t farthest = 0;   // the most tokens computed at any time
    bool runs = false;      // otherwise it waits
    bool admitted = false;  // running, or preempted
    Place place = {};       // while it waits
    double cost = 0;        // QueueOrder::Rank's, until it begins
    double turn = 0;        // UserTurns', until it begins
    uint64_t begun = 0;     // number of sequences that began before it
    int64_t reserved = 0;   // as in SequenceView
    int exceeded = 0;
    int passed = 0;  // how many others have overtaken it, because the forecast has no room for it
    BlockTable blocks;
    // In each group, a held block whose first tokens are to be copied to the next block.
    PerGroup<std::optional<BlockId>> cut_into = {};
  };
  class Planner;
  // Whether it lacks a part of its prompt, or of what was computed before it was preempted.
  static bool is_in_prefill(const Sequence& sequence);
  void release_cut_into(Sequence& sequence);
  double mean_answer() const;
  SequenceView view_of(const Sequence& sequence, int group) const;
  SequenceView view_of(const Sequence& sequence) const {
    return view_of(sequence, allocator_.forecast_group());
  }
  Sequence& at(RequestId id);
  void preempt(Sequence& sequence);
  // Whether both wait to begin and share a client and priority, so that one's cost delays
  // the other.
  static bool share_a_queue(const Sequence& one, const Sequence& other);
  // Returns the rank of a request that overtakes others of its client, and delays these.
  double overtake_later(const Sequence& arriving);
  // Called when a waiting sequence leaves before it began.
  void leave_queue(const Sequence& leaving);
  void extend_exceeded(Sequence& sequence);
  void begin(Sequence& sequence, const StepPlan::Beginning& beginning);

  BlockAllocator& allocator_;
  SchedulerLimits limits_;
  const PrefixSource* prefixes_;
  SchedulingPolicies policies_;
  // Sequences change lists by splicing, so they stay at their addresses.
  Sequences running_;  // in the order in which they first began
  Sequences waiting_;
  std::set<Place> queue_;  // the waiting ones, in the order in which they will begin
  UserTurns turns_;
  std::unordered_map<RequestId, Sequences::iterator> by_id_;
  int preempted_waiting_ = 0;
  uint64_t arrivals_ = 0;
  uint64_t beginnings_ = 0;
  int64_t preemptions_ = 0;
  int64_t exceeded_preemptions_ = 0;
  int64_t recomputed_tokens_ = 0;
  int64_t extensions_ = 0;
  // Answers that have ended or are expected: their number, and their tokens.
  int64_t answers_ = 0;
  int64_t answer_tokens_ = 0;
};

}  // namespace spillway
