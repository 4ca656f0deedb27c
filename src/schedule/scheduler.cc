// SPDX-License-Identifier: Apache-2.0
#include "schedule/scheduler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace spillway {

Scheduler::Scheduler(BlockAllocator& allocator, const SchedulerLimits& limits,
                     PrefixSource* prefixes)
    : allocator_(allocator), limits_(limits), prefixes_(prefixes) {
  SPW_CHECK(limits.max_step_tokens > 0 && limits.admission.max_sequences > 0, kInvalidArgument,
            "a step of {} tokens and {} sequences does nothing", limits.max_step_tokens,
            limits.admission.max_sequences);
}

void Scheduler::add(RequestId id, int32_t tokens, int64_t expected) {
  SPW_ASSERT(tokens > 0);
  Sequence sequence{.id = id,
                    .prompt = tokens,
                    .expected = expected,
                    .known = tokens,
                    .blocks = BlockTable(allocator_, expected)};
  if (expected > tokens) {
    ++answers_;
    answer_tokens_ += expected - tokens;
  }
  waiting_.push_back(std::move(sequence));
  const bool is_new = by_id_.emplace(id, std::prev(waiting_.end())).second;
  SPW_ASSERT(is_new);
}

void Scheduler::append(RequestId id) {
  const auto found = by_id_.find(id);
  SPW_ASSERT(found != by_id_.end());
  ++found->second->known;
}

void Scheduler::remove(RequestId id, std::optional<int64_t> answer) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  const Sequences::iterator ending = found->second;
  const bool was_expected = ending->expected > ending->prompt;
  if (was_expected) answer_tokens_ -= ending->expected - ending->prompt;
  if (was_expected && !ending->admitted) --answers_;  // cancelled: it tells nothing
  if (ending->admitted) {
    if (!was_expected) ++answers_;
    answer_tokens_ += answer.value_or(ending->known + 1 - ending->prompt);
  }
  (ending->runs ? running_ : waiting_).erase(ending);
  by_id_.erase(found);
}

// The youngest running sequence gives its blocks back and will be computed again, first of those
// waiting.
void Scheduler::preempt_youngest() {
  const auto youngest = std::prev(running_.end());
  youngest->blocks.clear();
  youngest->computed = 0;
  youngest->runs = false;
  waiting_.splice(waiting_.begin(), running_, youngest);
  ++preemptions_;
}

void Scheduler::preempt_all() {
  while (!running_.empty()) preempt_youngest();
}

// False when only sequences of this step, or `sequence` itself, could still give way.
bool Scheduler::reserve_or_preempt(Sequence& sequence, int64_t tokens) {
  while (!sequence.blocks.try_reserve(sequence.computed + tokens)) {
    if (running_.back().scheduled || &running_.back() == &sequence) return false;
    preempt_youngest();
  }
  return true;
}

void Scheduler::schedule(Sequence& sequence, int32_t tokens, StepPlan& plan) {
  plan.chunks.push_back({.id = sequence.id,
                         .start = sequence.computed,
                         .tokens = tokens,
                         .last = sequence.computed + tokens == sequence.known,
                         .block_table = &sequence.blocks.blocks()});
  sequence.computed += tokens;
  sequence.scheduled = true;
}

int Scheduler::most_admissions() const {
  int most = limits_.admission.max_sequences;
  if (limits_.admission.max_admissions > 0) most = std::min(most, limits_.admission.max_admissions);
  if (limits_.admission.stagger && answers_ > 0) {
    const double mean = static_cast<double>(answer_tokens_) / static_cast<double>(answers_);
    most = std::min(most, staggered_admissions(limits_.admission.max_sequences, mean));
  }
  return most;
}

// Whether `next` may join those that run. One that was preempted belongs to their block already.
bool Scheduler::block_is_open(const Sequence& next) {
  if (!limits_.admission.admit_in_blocks || next.admitted) return true;
  if (running_.empty()) block_room_ = limits_.admission.max_sequences;
  return block_room_ > 0;
}

bool Scheduler::is_in_prefill(const Sequence& sequence) {
  return sequence.known - sequence.computed > 1 || sequence.computed < sequence.prompt;
}

void Scheduler::schedule_running(bool in_prefill, int32_t& budget, StepPlan& plan) {
  for (auto it = running_.begin(); it != running_.end() && budget > 0; ++it) {
    Sequence& sequence = *it;
    const int32_t missing = sequence.known - sequence.computed;
    if (sequence.scheduled || missing == 0 || is_in_prefill(sequence) != in_prefill) continue;
    const int32_t tokens = std::min(missing, budget);
    if (reserve_or_preempt(sequence, tokens)) {
      schedule(sequence, tokens, plan);
      budget -= tokens;
    } else if (running_.size() == 1) {
      plan.exhausted.push_back(sequence.id);
    } else if (&running_.back() == &sequence) {
      preempt_youngest();  // gives way itself
      return;
    }  // else: an older one waits for those already in this step
  }
}

// What it begins with, if it is there, and in a pool that has room for the rest of it.
void Scheduler::find_prefix(Sequence& sequence) {
  if (prefixes_ == nullptr) return;
  sequence.computed = prefixes_->begin(sequence.id, sequence.blocks);
  const std::vector<BlockId>& blocks = sequence.blocks.blocks();
  if (blocks.empty() || allocator_.pools() == 1) return;
  const int64_t rest = blocks_for_tokens(std::max<int64_t>(sequence.known + 1, sequence.expected)) -
                       static_cast<int64_t>(blocks.size());
  if (rest <= allocator_.free(allocator_.pool_of(blocks.front()))) return;
  sequence.blocks.clear();
  sequence.computed = 0;
}

// Newcomers, if there is room for all their tokens and one more.
void Scheduler::admit(int32_t& budget, StepPlan& plan) {
  const int most = most_admissions();
  for (int admitted = 0;
       admitted < most && budget > 0 && !waiting_.empty() &&
       running() < limits_.admission.max_sequences && block_is_open(waiting_.front());
       ++admitted) {
    Sequence& next = waiting_.front();
    find_prefix(next);
    const auto have = static_cast<int64_t>(next.blocks.blocks().size());
    if (!running_.empty() && blocks_for_tokens(next.known + 1) - have > allocator_.most_free()) {
      next.blocks.clear();
      next.computed = 0;
      block_room_ = 0;  // it is what there was room for
      return;
    }
    const int32_t tokens = std::min(next.known - next.computed, budget);
    if (!next.blocks.try_reserve(next.computed + tokens)) {
      plan.exhausted.push_back(next.id);  // alone, and nobody will ever make room
      return;
    }
    if (!next.admitted) --block_room_;
    next.admitted = next.runs = true;
    next.scheduled = false;
    running_.splice(running_.end(), waiting_, waiting_.begin());
    const int32_t reused = next.computed;
    schedule(next, tokens, plan);
    plan.chunks.back().reused = reused;
    budget -= tokens;
  }
}

StepPlan Scheduler::next_step() {
  StepPlan plan;
  const int64_t preemptions_before = preemptions_;
  for (Sequence& sequence : running_) sequence.scheduled = false;
  int32_t budget = limits_.max_step_tokens;
  if (!limits_.admission.prompts_first) schedule_running(/*in_prefill=*/false, budget, plan);
  schedule_running(/*in_prefill=*/true, budget, plan);
  // Nobody begins in a step that preempted: its room is spoken for.
  if (preemptions_ == preemptions_before && plan.exhausted.empty()) admit(budget, plan);
  if (limits_.admission.prompts_first && plan.chunks.empty() && plan.exhausted.empty())
    schedule_running(/*in_prefill=*/false, budget, plan);
  return plan;
}

}  // namespace spillway
