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
  int max_step_tokens =
      512;  // all sequences together; long prompts are cut into chunks of what is left
  // Of these, tokens of prompts in a step in which others generate, who wait for them; 0: all.
  int max_prompt_tokens = 0;
  // Rows of logits; sequences whose prompt is scored have one for each of its tokens. 0: any.
  int max_logit_rows = 0;
  AdmissionPolicy admission = {};
};

// Who knows which blocks have what a request begins with.
class PrefixSource {
 public:
  virtual ~PrefixSource() = default;
  // All of one pool, the device's where something is to be loaded, for at least one token fewer
  // than it has; of all groups up to the same token. Asked again in each step as long as the
  // request has not begun. `beginning`: in the same step; what these compute is coming.
  virtual FoundPrefix find(RequestId id, std::span<const RequestId> beginning) const = 0;
};

struct NewSequence {
  RequestId id{};
  int32_t tokens = 0;    // known: the prompt
  int64_t expected = 0;  // in the end, 0 where nobody knows
  // In the end, as predicted: what it is promised room for. 0: nobody predicts.
  int64_t predicted = 0;
  int priority = 0;  // lower ones matter more
  uint64_t client = 0;
  uint64_t user = 0;    // of the client's
  bool scored = false;  // logits of every token are wanted
};

// Sequences that generate go first (with the tokens that are new since they last drew one), then
// prompts in chunks, then new requests, and drafts with what is left. When blocks run out, a
// running sequence loses its own and is computed again later. Which one, and who begins when, is
// the policies'. Not thread-safe.
class Scheduler {
 public:
  // `prefixes` may be null: everything is computed.
  Scheduler(BlockAllocator& allocator, const SchedulerLimits& limits,
            const PrefixSource* prefixes = nullptr, SchedulingPolicies policies = {});

  // An id comes once.
  void add(const NewSequence& sequence);
  void add(RequestId id, int32_t tokens, int64_t expected = 0) {
    add({.id = id, .tokens = tokens, .expected = expected});
  }
  // More tokens are known: the sampled one, or several that are to come next.
  void append(RequestId id, int32_t tokens = 1);
  // In the next step in which all known tokens of a sequence that generates are computed, so many
  // tokens that may follow go along, or fewer: nothing else gets less room for them, and no
  // sequence is preempted. Once; at most kMostCutBack. With a recurrent group: none where no block
  // on the device is free for the checkpoint, or where the state is in another memory.
  void propose(RequestId id, int32_t drafts);
  // The newest tokens are no longer known: at most kMostCutBack, and none of the prompt. What is
  // computed of the others stays, so that it goes on with append(). Blocks behind go back; one that
  // is cut into has no key for more than what is left in it and, where others hold it, is copied
  // before the next step writes to it. With a recurrent group what is computed ends where the last
  // step began, if that brought drafts; the next step computes the tokens behind that again.
  //
  // Windows keep what is reached from kMostCutBack tokens behind the farthest one computed. Where
  // repeated cuts come to what is gone, or there is no checkpoint, the sequence is preempted (false
  // is returned) and is computed again: any cuts are right, whatever came before. Drafts of the
  // last step can always be cut off without that.
  bool cut_back(RequestId id, int32_t tokens);
  // Finished or cancelled, with `answer` tokens (not said: those appended, and the last one);
  // unknown ids are ignored.
  void remove(RequestId id, std::optional<int64_t> answer = std::nullopt);

  // All running sequences lose their blocks and are computed again: what the blocks held is lost.
  void preempt_all();

  // Who gives way, one after the other, until those that run hold at most `blocks` of a pool.
  std::vector<RequestId> choose_to_give_way(Tier pool, int64_t blocks, int group = 0) const;
  void preempt(std::span<const RequestId> ids);
  // Blocks of those that run have other ids.
  void rename(std::span<const BlockAllocator::Move> moves);

  // Gives back the blocks that no token of their sequences reaches any more, as behind a window,
  // and checkpoints. Once before each step.
  void release_behind();
  // The next step; changes nothing. Empty chunks: nothing to do.
  StepPlan prepare() const;
  // Takes and gives back blocks as the plan says, which was prepared since the last change, and
  // counts its tokens as computed. What is to be copied is held until release_copies().
  void apply(StepPlan& plan);
  void release_copies(const StepPlan& plan);
  StepPlan next_step() {
    release_behind();
    StepPlan plan = prepare();
    apply(plan);
    return plan;
  }

  // Of one that runs, until the next change.
  const BlockTable& table_of(RequestId id) { return at(id).blocks; }
  const std::vector<BlockId>& blocks_of(RequestId id, int group = 0) {
    return at(id).blocks.blocks(group);
  }
  int32_t computed_of(RequestId id) { return at(id).computed; }
  // Whether one that is here is, or with one more token would be, in several pools.
  bool spans(RequestId id) const;

  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return static_cast<int>(waiting_.size()); }
  // Those that run, then those that wait, in the order in which they begin; `most` in all, but all
  // that run.
  std::vector<SequenceView> at_work_and_next(int most) const;
  // Begun and not ended; those that were preempted wait.
  std::vector<RequestId> begun() const;
  // Of one that is here, the same.
  bool has_begun(RequestId id) const { return by_id_.at(id)->admitted; }
  int64_t preemptions() const { return preemptions_; }
  // Of these, sequences that had gone beyond what was predicted.
  int64_t outgrown_preemptions() const { return outgrown_preemptions_; }
  // Tokens that were computed before, and again after their sequences had lost their blocks.
  int64_t recomputed_tokens() const { return recomputed_tokens_; }
  // How often a sequence went beyond what was predicted, and was promised more.
  int64_t extensions() const { return extensions_; }

 private:
  struct Sequence;
  using Sequences = std::list<Sequence>;
  // Where a waiting sequence stands. Those that were preempted are before all, as they began.
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
    int32_t fresh = 0;     // of these, appended since the last one was drawn
    int32_t proposed = 0;  // drafts for the next step
    int32_t drafted = 0;   // known for now: drafts of the step at hand
    int32_t computed = 0;
    int32_t farthest = 0;   // computed at any time
    bool runs = false;      // else it waits
    bool admitted = false;  // now or before it was preempted
    Place place = {};       // while it waits
    double cost = 0;        // QueueOrder::Rank's, of one that has not begun
    double turn = 0;        // UserTurns', of such a one
    uint64_t begun = 0;     // the how manieth to begin
    int64_t reserved = 0;   // as SequenceView's
    int outgrown = 0;
    int passed = 0;  // by others that began, since the forecast has no room for it
    BlockTable blocks;
    // Held, in each group: its first tokens are copied to the next block.
    PerGroup<std::optional<BlockId>> cut_into = {};
  };
  class Planner;
  // Whether it lacks some of its prompt, or what it had computed before it was preempted.
  static bool is_in_prefill(const Sequence& sequence);
  void release_cut_into(Sequence& sequence);
  double mean_answer() const;
  SequenceView view_of(const Sequence& sequence, int group) const;
  SequenceView view_of(const Sequence& sequence) const {
    return view_of(sequence, allocator_.forecast_group());
  }
  Sequence& at(RequestId id);
  void preempt(Sequence& sequence);
  // Whether both wait for their first turn, and what one costs puts the other back.
  static bool share_a_queue(const Sequence& one, const Sequence& other);
  // The rank of one that passes others of its client; these are put back.
  double pass_later_turns(const Sequence& arriving);
  // One that waits and has not begun is going.
  void leave_queue(const Sequence& leaving);
  void extend_outgrown(Sequence& sequence);
  void begin(Sequence& sequence, const StepPlan::Beginning& beginning);

  BlockAllocator& allocator_;
  SchedulerLimits limits_;
  const PrefixSource* prefixes_;
  SchedulingPolicies policies_;
  // A sequence changes from one list to the other without being moved itself.
  Sequences running_;  // in the order in which they first began
  Sequences waiting_;
  std::set<Place> queue_;  // the waiting ones, in order
  UserTurns turns_;
  std::unordered_map<RequestId, Sequences::iterator> by_id_;
  int preempted_waiting_ = 0;
  uint64_t arrivals_ = 0;
  uint64_t beginnings_ = 0;
  int64_t preemptions_ = 0;
  int64_t outgrown_preemptions_ = 0;
  int64_t recomputed_tokens_ = 0;
  int64_t extensions_ = 0;
  // Of sequences that ended or are expected to: their answers' tokens.
  int64_t answers_ = 0;
  int64_t answer_tokens_ = 0;
};

}  // namespace spillway
