// SPDX-License-Identifier: Apache-2.0
// For tests: an engine without a model. It carries out plans with blocks that remember which tokens
// they hold, and checks every plan against what a scheduler promises.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/block_allocator.h"
#include "kv/block_key.h"
#include "schedule/prefix_search.h"
#include "schedule/scheduler.h"

namespace spillway::testing_schedule {

struct SimulatedRequest {
  std::vector<int32_t> prompt;
  int answer = 1;           // tokens that it has in the end, if there is room
  bool is_expected = true;  // whether the length of the answer is known
  int predicted = 0;        // predicted tokens of the answer; 0: no prediction
  int priority = 0;
  uint64_t client = 0;
  uint64_t user = 0;
  bool scored = false;
};

struct SimulatedOptions {
  std::vector<int32_t> pools = {64};
  std::vector<GroupPools> groups = {};  // instead of `pools`, for layers of several groups
  int64_t span_blocks = 0;
  SchedulerLimits limits;
  bool fair = false;
  bool reuses = false;  // whether requests share blocks
  // With `reuses`: blocks that the device's pool evicts are kept in a store, and can be loaded some
  // steps after they are requested.
  bool stores = false;
  // The most drafts of a sequence in a step, and the most tokens that are sometimes cut off a
  // sequence and replaced by others.
  int drafts = 0, cut_back = 0;
  // Makes the policies, if these are not the default ones.
  std::function<SchedulingPolicies()> policies = nullptr;
};

class SimulatedEngine : private PrefixSource {
 public:
  explicit SimulatedEngine(const SimulatedOptions& options)
      : options_(options),
        allocator_(options.groups.empty() ? std::vector{GroupPools{.pools = options.pools}}
                                          : options.groups,
                   options.span_blocks, options.limits.max_step_tokens),
        scheduler_(allocator_, options.limits, options.reuses ? this : nullptr,
                   policies_of(options)),
        contents_(allocator_) {
    for (int group = 0; group < allocator_.groups(); ++group)
      for (const Tier pool : allocator_.pools())
        for (const BlockId block : block_range(0, allocator_.total(pool, group), pool, group))
          all_blocks_.push_back(block);
    if (!options.stores) return;
    allocator_.observe_evictions([this](BlockId block, const BlockContents& has) {
      if (block.tier == Tier::kDevice) stored_[has.key] = contents_[block];
    });
  }

  RequestId submit(SimulatedRequest request) {
    const auto id = RequestId{next_id_++};
    const auto prompt = static_cast<int32_t>(request.prompt.size());
    random_ += static_cast<uint32_t>(prompt);
    scheduler_.add({.id = id,
                    .tokens = prompt,
                    .expected = request.is_expected ? prompt + request.answer : 0,
                    .predicted = request.predicted > 0 ? prompt + request.predicted : 0,
                    .priority = request.priority,
                    .client = request.client,
                    .user = request.user,
                    .scored = request.scored});
    Sequence& sequence = sequences_[id];
    sequence.tokens = request.prompt;
    sequence.prompt = prompt;
    sequence.steps_to_fetch = options_.stores ? prompt % 4 : 0;
    sequence.given = std::move(request);
    return id;
  }

  void cancel(RequestId id) {
    scheduler_.remove(id);
    sequences_.erase(id);
  }

  // Simulates a failed step: the contents of all blocks are lost.
  void lose_all() {
    allocator_.forget_all();
    scheduler_.preempt_all();
    for (auto& [id, sequence] : sequences_) sequence.lose();
  }

  // Runs a step; returns whether there was anything to do.
  bool step() {
    ++steps_;
    scheduler_.release_behind();
    const Bookkeeping before = bookkeeping();
    StepPlan plan = scheduler_.prepare();
    EXPECT_EQ(flattened(plan), flattened(scheduler_.prepare())) << "a plan changed something";
    EXPECT_TRUE(before == bookkeeping()) << "a plan changed something";
    check_budgets(plan);
    check_work_conservation(plan);
    if (options_.reuses) {
      for (const RequestId id : plan.preempted) keep_last(id);
    }
    scheduler_.apply(plan);  // throws if a planned block cannot be taken
    for (const RequestId id : plan.preempted) sequences_.at(id).lose();
    for (const ScheduledChunk& chunk : plan.chunks) {
      Sequence& sequence = sequences_.at(chunk.id);
      copies_after_cuts_ += is_cut_into(sequence) ? 1 : 0;
      sequence.cut_into = {};
    }
    for (auto& [id, sequence] : sequences_) sequence.steps_to_fetch -= sequence.steps_to_fetch > 0;
    check_holders(plan);
    begin(plan);
    scheduler_.release_copies(plan);
    check_holders({});
    for (const ScheduledChunk& chunk : plan.chunks) {
      for (int group = 0; group < allocator_.groups(); ++group) compute(chunk, group);
      check_windows(chunk);
      sequences_.at(chunk.id).computed = chunk.start + chunk.tokens - chunk.drafted;
      if (chunk.last) sequences_.at(chunk.id).fresh = 0;
    }
    if (options_.reuses) keep(plan);
    for (const ScheduledChunk& chunk : plan.chunks) {
      if (chunk.last) accept(chunk);
    }
    for (const RequestId id : plan.exhausted) {
      EXPECT_GT(known(sequences_.at(id)), allocator_.longest())
          << "it ended although there is room for it";
      end(id);
      ++exhausted_;
    }
    for (const RequestId id : ids()) cut_back(id);
    check_holders({});
    return !plan.chunks.empty() || !plan.exhausted.empty();
  }

  const Scheduler& scheduler() const { return scheduler_; }
  const BlockAllocator& allocator() const { return allocator_; }
  size_t outstanding() const { return sequences_.size(); }
  std::vector<RequestId> ids() const {
    std::vector<RequestId> all;
    for (const auto& [id, sequence] : sequences_) all.push_back(id);
    return all;
  }
  bool has_ended(RequestId id) const { return !sequences_.contains(id); }
  int64_t steps() const { return steps_; }
  int64_t reused_tokens() const { return reused_; }
  int64_t exhausted() const { return exhausted_; }
  int64_t loads() const { return loads_; }
  int64_t drafts_computed() const { return drafts_computed_; }
  int64_t drafts_accepted() const { return drafts_accepted_; }
  int64_t tokens_cut() const { return tokens_cut_; }
  int64_t copies_after_cuts() const { return copies_after_cuts_; }
  int64_t cuts() const { return cuts_; }
  // Those of `cuts()` that reached released blocks, so that the sequence was preempted.
  int64_t preempting_cuts() const { return preempting_cuts_; }
  // Cuts of drafts after which the sequence continued from a checkpoint.
  int64_t uses_of_checkpoints() const { return uses_of_checkpoints_; }
  // Reused tokens of groups that no longer needed their first blocks, summed over groups.
  int64_t reused_windows() const { return reused_windows_; }
  int64_t most_held(int group) const { return most_held_[index_of(group)]; }

 private:
  struct Sequence {
    SimulatedRequest given;
    std::vector<int32_t> tokens;  // prompt and answer
    int32_t prompt = 0;
    int32_t computed = 0;
    int32_t fresh = 0;            // appended since the last one was sampled
    std::vector<int32_t> drafts;  // for the next step
    bool begun = false;           // at any time
    bool runs = false;
    int steps_to_fetch = 0;  // steps until the stored blocks can be loaded
    int costly_cuts = 0;     // cuts so far for which it was preempted or had to catch up
    PerGroup<std::optional<BlockId>> cut_into = {};
    void lose() {
      computed = 0;
      runs = false;
      cut_into = {};
    }
  };
  struct Bookkeeping {
    std::vector<int64_t> numbers;
    bool operator==(const Bookkeeping&) const = default;
  };
  static SchedulingPolicies policies_of(const SimulatedOptions& options) {
    if (options.policies) return options.policies();
    return {.order = options.fair ? std::make_unique<FairOrder>() : nullptr,
            .admission = nullptr,
            .preemption = nullptr};
  }
  static int32_t known(const Sequence& sequence) {
    return static_cast<int32_t>(sequence.tokens.size());
  }
  static bool generates(const Sequence& sequence) {
    return sequence.computed >= sequence.prompt &&
           known(sequence) - sequence.computed <= sequence.fresh;
  }

  // A value for each block.
  template <class T>
  class ByBlock {
   public:
    explicit ByBlock(const BlockAllocator& of) : pools_(static_cast<size_t>(of.groups())) {
      for (int group = 0; group < of.groups(); ++group)
        for (const Tier pool : of.pools())
          pools_[index_of(group)].emplace_back(static_cast<size_t>(of.total(pool, group)));
    }
    T& operator[](BlockId block) {
      return pools_.at(block.group).at(index_of(block.tier)).at(static_cast<size_t>(block.number));
    }

   private:
    std::vector<std::vector<std::vector<T>>> pools_;
  };
  using Contents = std::array<uint64_t, kKvBlockTokens>;

  Bookkeeping bookkeeping() const {
    Bookkeeping all;
    for (const auto& of_group : allocator_.rooms())
      for (const PoolRoom& room : of_group)
        all.numbers.insert(all.numbers.end(), {room.free, room.promised});
    for (const BlockId block : all_blocks_) all.numbers.push_back(allocator_.holders(block));
    all.numbers.insert(all.numbers.end(),
                       {scheduler_.running(), scheduler_.waiting(), scheduler_.preemptions()});
    return all;
  }

  static std::vector<int64_t> flattened(const StepPlan& plan) {
    std::vector<int64_t> all;
    const auto add = [&](auto... values) { (all.push_back(static_cast<int64_t>(values)), ...); };
    const auto add_block = [&](BlockId block) { add(block.tier, block.number, block.group); };
    for (const ScheduledChunk& chunk : plan.chunks)
      add(chunk.id, chunk.start, chunk.tokens, chunk.drafted, chunk.reused, chunk.last,
          chunk.generates, chunk.reservation.checkpoint.value_or(-1));
    for (const auto* ids : {&plan.exhausted, &plan.preempted}) {
      add(-1);
      for (const RequestId id : *ids) add(id);
    }
    for (const StepPlan::Beginning& beginning : plan.beginning) {
      const FoundPrefix& found = beginning.found;
      add(-2, beginning.chunk, beginning.pool, found.tokens);
      for (size_t group = 0; group < found.blocks.size(); ++group) {
        add(found.partly[group].has_value());
        if (found.partly[group]) add_block(*found.partly[group]);
        for (const BlockId block : found.blocks[group]) add_block(block);
        for (const BlockKey& key : found.loads[group]) add(key.low, key.high);
      }
    }
    add(plan.is_full, plan.copies.size());
    for (const RequestId id : plan.passed_over) add(id);
    return all;
  }

  // Checks a plan before it is applied.
  void check_budgets(const StepPlan& plan) {
    const SchedulerLimits& limits = options_.limits;
    int64_t all = 0, of_prompts = 0, rows = 0;
    int generating = 0, admissions = 0;
    std::set<RequestId> seen;
    for (const ScheduledChunk& chunk : plan.chunks) {
      const Sequence& sequence = sequences_.at(chunk.id);
      EXPECT_TRUE(seen.insert(chunk.id).second);
      EXPECT_GT(chunk.tokens, 0);
      const int32_t certain = chunk.tokens - chunk.drafted;
      EXPECT_GT(certain, 0);
      EXPECT_EQ(chunk.last, chunk.start + certain == known(sequence));
      EXPECT_LE(chunk.start + certain, known(sequence));
      EXPECT_TRUE(chunk.drafted == 0 || (chunk.last && chunk.generates));
      EXPECT_LE(static_cast<size_t>(chunk.drafted), sequence.drafts.size());
      if (sequence.runs) {
        EXPECT_EQ(chunk.start, sequence.computed);
        EXPECT_EQ(chunk.generates, generates(sequence));
      }
      all += chunk.tokens;
      if (sequence.runs && generates(sequence)) {
        ++generating;
      } else {
        of_prompts += chunk.tokens;
      }
      admissions += sequence.begun ? 0 : 1;
      rows += sequence.given.scored ? chunk.tokens : chunk.last ? 1 + chunk.drafted : 0;
    }
    EXPECT_LE(all, limits.max_step_tokens);
    if (generating > 0 && limits.max_prompt_tokens > 0) {
      EXPECT_LE(of_prompts, limits.max_prompt_tokens);
    }
    if (limits.max_logit_rows > 0) {
      EXPECT_LE(rows, limits.max_logit_rows);
    }
    if (limits.admission.prompts_first) {
      EXPECT_TRUE(generating == 0 || of_prompts == 0);
    }
    if (limits.admission.max_admissions > 0) {
      EXPECT_LE(admissions, limits.admission.max_admissions);
    }
    const int running = scheduler_.running() - static_cast<int>(plan.preempted.size()) +
                        static_cast<int>(plan.beginning.size());
    EXPECT_LE(running, limits.admission.max_sequences);
    check_blocks_of_sequences(admissions);
    for (const RequestId id : plan.preempted) EXPECT_FALSE(seen.contains(id));
  }

  // In a schedule with batch blocks, no sequence may join a block that is, or was, full.
  void check_blocks_of_sequences(int admissions) {
    if (!options_.limits.admission.admit_in_blocks) return;
    const bool any = std::ranges::any_of(sequences_, [](const auto& s) { return s.second.begun; });
    in_block_ = (any ? in_block_ : 0) + admissions;
    EXPECT_LE(in_block_, options_.limits.admission.max_sequences);
  }

  // Checks, before the plan is applied, that a running sequence that is not scheduled has a reason.
  void check_work_conservation(const StepPlan& plan) {
    if (plan.chunks.empty() && plan.exhausted.empty()) {
      const bool fetches = std::ranges::any_of(
          sequences_, [](const auto& s) { return s.second.steps_to_fetch > 0; });
      EXPECT_TRUE(sequences_.empty() || !plan.preempted.empty() || fetches)
          << "an empty step while a sequence could run";
      return;
    }
    const SchedulerLimits& limits = options_.limits;
    int64_t all = 0, rows = 0;
    std::set<RequestId> seen;
    for (const ScheduledChunk& chunk : plan.chunks) {
      seen.insert(chunk.id);
      const int32_t certain = chunk.tokens - chunk.drafted;
      all += certain;
      rows += sequences_.at(chunk.id).given.scored ? certain : chunk.last ? 1 : 0;
    }
    const bool has_room = all < limits.max_step_tokens && plan.preempted.empty() &&
                          plan.exhausted.empty() && limits.max_prompt_tokens == 0 &&
                          (limits.max_logit_rows == 0 || rows < limits.max_logit_rows);
    if (!has_room || limits.admission.prompts_first) return;
    // A running sequence that has blocks for its next token must be scheduled.
    for (const auto& [id, sequence] : sequences_) {
      if (!sequence.runs || seen.contains(id)) continue;
      bool has_all = true;
      for (int group = 0; group < allocator_.groups(); ++group)
        has_all &= allocator_.rule(group).entries(known(sequence)) <=
                   static_cast<int64_t>(scheduler_.blocks_of(id, group).size());
      EXPECT_FALSE(has_all) << "it has all it needs and waits";
    }
  }

  // Checks that each block has as many holders as tables contain it, plus the copies to be
  // made of it.
  void check_holders(const StepPlan& plan) {
    ByBlock<int32_t> holders(allocator_);
    int running = 0;
    for (const auto& [id, sequence] : sequences_) {
      bool has_blocks = false;
      const std::vector<BlockId>* first = nullptr;  // the blocks of the first paged group
      for (int group = 0; group < allocator_.groups(); ++group) {
        const std::vector<BlockId>& blocks = scheduler_.blocks_of(id, group);
        has_blocks |= !blocks.empty();
        if (first == nullptr && allocator_.rule(group).is_paged()) first = &blocks;
        for (size_t i = 0; i < blocks.size(); ++i) {
          EXPECT_EQ(blocks[i].group, group);
          if (options_.span_blocks == 0) {
            EXPECT_EQ(blocks[i].tier, blocks.front().tier);
          }
          if (first != nullptr && allocator_.rule(group).is_paged() && i < first->size()) {
            EXPECT_EQ(blocks[i].tier, (*first)[i].tier);
          }
          if (!blocks[i].is_released()) ++holders[blocks[i]];
        }
      }
      bool is_cut = false;
      for (const std::optional<BlockId>& block : sequence.cut_into) {
        is_cut |= block.has_value();
        if (block) ++holders[*block];
      }
      running += has_blocks || is_cut ? 1 : 0;
    }
    for (const StepPlan::Copy& copy : plan.copies) ++holders[copy.from];
    int32_t free = 0;
    for (const BlockId block : all_blocks_) {
      EXPECT_EQ(allocator_.holders(block), holders[block]);
      free += holders[block] == 0 ? 1 : 0;
    }
    EXPECT_EQ(allocator_.free(), free);
    EXPECT_EQ(scheduler_.running(), running);
  }

  void begin(const StepPlan& plan) {
    for (const StepPlan::Beginning& beginning : plan.beginning) {
      const ScheduledChunk& chunk = plan.chunks[beginning.chunk];
      Sequence& sequence = sequences_.at(chunk.id);
      EXPECT_FALSE(sequence.runs);
      EXPECT_EQ(chunk.start, beginning.found.tokens);
      EXPECT_EQ(chunk.reused, beginning.found.tokens);
      sequence.begun = sequence.runs = true;
      sequence.computed = chunk.start;
      reused_ += chunk.reused;
      for (const std::vector<BlockId>& blocks : beginning.found.blocks)
        if (!blocks.empty() && blocks.front().is_released()) reused_windows_ += chunk.reused;
    }
    for (const StepPlan::Load& load : plan.loads) {
      EXPECT_EQ(allocator_.holders(load.to), 1);
      contents_[load.to] = stored_.at(load.key);
      ++loads_;
    }
    for (const StepPlan::Copy& copy : plan.copies) {
      EXPECT_GT(allocator_.holders(copy.from), 0);
      EXPECT_EQ(allocator_.holders(copy.to), 1);
      EXPECT_EQ(copy.from.tier, copy.to.tier);
      contents_[copy.to] = contents_[copy.from];
    }
  }

  // Checks that a sequence reads only what it would have computed itself, and writes only to
  // blocks of its own.
  void compute(const ScheduledChunk& chunk, int group) {
    const Sequence& sequence = sequences_.at(chunk.id);
    const StateRule& rule = allocator_.rule(group);
    const std::vector<BlockId>& blocks = chunk.table->blocks(group);
    const int32_t end = chunk.start + chunk.tokens;
    std::vector<int32_t> tokens = sequence.tokens;
    tokens.insert(tokens.end(), sequence.drafts.begin(), sequence.drafts.begin() + chunk.drafted);
    if (group == 0) drafts_computed_ += chunk.drafted;
    ASSERT_LE(rule.entries(end), static_cast<int64_t>(blocks.size()));
    uint64_t history = 0;
    for (int32_t i = 0; i < end; ++i) {
      history = (history ^ static_cast<uint64_t>(tokens[static_cast<size_t>(i)] + 1)) *
                0x9E3779B97F4A7C15ULL;
      // A recurrent state stands for the last of its tokens.
      const BlockId block = blocks[rule.is_paged() ? static_cast<size_t>(i / kKvBlockTokens) : 0];
      const size_t place = rule.is_paged() ? static_cast<size_t>(i % kKvBlockTokens) : 0;
      if (i < chunk.start) {
        const bool is_read =
            rule.is_paged() ? i >= rule.first_reachable(chunk.start) : i == chunk.start - 1;
        if (!is_read) continue;
        ASSERT_FALSE(block.is_released()) << "it is still needed";
        ASSERT_EQ(contents_[block][place], history) << "another sequence's KV";
      } else {
        ASSERT_FALSE(block.is_released()) << "it is not there yet";
        ASSERT_EQ(allocator_.holders(block), 1) << "written by one, read by others";
        contents_[block][place] = history;
      }
    }
  }

  // Checks that windows hold no more blocks than the window and a step take.
  void check_windows(const ScheduledChunk& chunk) {
    for (int group = 0; group < allocator_.groups(); ++group) {
      const auto held = static_cast<int64_t>(chunk.table->held(group).size());
      int64_t& most = most_held_[index_of(group)];
      most = std::max(most, held);
      if (allocator_.rule(group).keeps_all()) continue;
      EXPECT_LE(held,
                allocator_.most_blocks(chunk.start + chunk.tokens, group) + options_.span_blocks);
    }
  }

  void accept(const ScheduledChunk& chunk) {
    const RequestId id = chunk.id;
    Sequence& sequence = sequences_.at(id);
    int32_t accepted = 0;
    while (true) {
      if (known(sequence) - sequence.prompt + 1 >= sequence.given.answer) return end(id);
      // Sequences with the same last token generate the same next ones for a while.
      const int32_t next = sequence.tokens.back() % 5;
      sequence.tokens.push_back(next);
      if (accepted == chunk.drafted || sequence.drafts[static_cast<size_t>(accepted)] != next)
        break;
      ++accepted;
    }
    drafts_accepted_ += accepted;
    sequence.computed += accepted;
    if (chunk.drafted > 0) {
      EXPECT_TRUE(scheduler_.cut_back(id, chunk.drafted - accepted)) << "drafts can be cut off";
    }
    if (allocator_.has_states() && accepted < chunk.drafted) {
      sequence.computed = chunk.start;  // returns to the checkpoint
      ++uses_of_checkpoints_;
      EXPECT_LE(known(sequence) - sequence.computed, kMostCutBack + 1);
    }
    EXPECT_EQ(scheduler_.computed_of(id), sequence.computed);
    scheduler_.append(id);
    sequence.fresh = known(sequence) - sequence.computed;
    sequence.drafts.clear();
    const int most = options_.drafts > 0 ? below(options_.drafts + 1) : 0;
    for (int i = 0; i < most; ++i)
      sequence.drafts.push_back(below(4) == 0 ? 7 : sequence.tokens.back() % 5);
    if (most > 0) scheduler_.propose(id, most);
  }
  void end(RequestId id) {
    if (options_.reuses && sequences_.at(id).runs) keep_last(id);
    cancel(id);
  }

  static bool is_cut_into(const Sequence& sequence) {
    return std::ranges::any_of(sequence.cut_into,
                               [](const auto& block) { return block.has_value(); });
  }

  // Replaces the newest tokens by others.
  void cut_back(RequestId id) {
    Sequence& sequence = sequences_.at(id);
    // Limited, because a sequence that is computed again each time would never end.
    if (below(6) > 0 || sequence.costly_cuts >= 20) return;
    do {
      cut_back_once(id);
    } while (below(3) == 0);
  }

  void cut_back_once(RequestId id) {
    Sequence& sequence = sequences_.at(id);
    const int32_t most = std::min(options_.cut_back, known(sequence) - sequence.prompt);
    if (most <= 0) return;
    const int32_t tokens = 1 + below(most);
    const bool cuts_into_computed = scheduler_.computed_of(id) > known(sequence) - tokens;
    PerGroup<std::vector<BlockId>> before;
    for (int group = 0; group < allocator_.groups(); ++group)
      before[index_of(group)] = scheduler_.blocks_of(id, group);
    const bool goes_on = scheduler_.cut_back(id, tokens);
    ++cuts_;
    sequence.costly_cuts += !goes_on || !generates(sequence) ? 1 : 0;
    sequence.tokens.resize(sequence.tokens.size() - static_cast<size_t>(tokens));
    sequence.fresh = std::max(0, sequence.fresh - tokens);
    sequence.drafts.clear();
    sequence.computed = scheduler_.computed_of(id);
    EXPECT_LE(sequence.computed, known(sequence));
    if (!goes_on) {
      EXPECT_TRUE(cuts_into_computed && sequence.runs);
      sequence.lose();
      ++preempting_cuts_;
    } else if (cuts_into_computed && allocator_.has_states()) {
      sequence.fresh = std::max(sequence.fresh, known(sequence) - sequence.computed);
    }
    for (int group = 0; group < allocator_.groups(); ++group) {
      if (!allocator_.rule(group).is_paged()) continue;
      const size_t left = scheduler_.blocks_of(id, group).size();
      auto& cut_into = sequence.cut_into[index_of(group)];
      if (!sequence.runs || static_cast<size_t>(sequence.computed) <= left * kKvBlockTokens) {
        cut_into.reset();
      } else if (!cut_into) {
        cut_into = before[index_of(group)][left];
      }
    }
    tokens_cut_ += tokens;
    const int32_t others = 1 + below(3);
    for (int32_t i = 0; i < others; ++i) sequence.tokens.push_back(below(5));
    sequence.fresh += others;
    scheduler_.append(id, others);
  }

  int below(int n) {
    random_ = random_ * 1664525U + 1013904223U;
    return static_cast<int>((random_ >> 8) % static_cast<uint32_t>(n));
  }

  std::vector<BlockKey> keys_of(std::span<const int32_t> tokens) const {
    std::vector<BlockKey> keys;
    for (size_t i = 0; i + kKvBlockTokens <= tokens.size(); i += kKvBlockTokens)
      keys.push_back(
          next_key(keys.empty() ? first_key_ : keys.back(), tokens.subspan(i, kKvBlockTokens)));
    return keys;
  }

  BlockKey key_before(std::span<const BlockKey> keys) const {
    return keys.empty() ? first_key_ : keys.back();
  }

  void keep(const StepPlan& plan) {
    for (const ScheduledChunk& chunk : plan.chunks) {
      const Sequence& sequence = sequences_.at(chunk.id);
      const auto end = static_cast<size_t>(chunk.start + chunk.tokens - chunk.drafted);
      const auto tokens = std::span<const int32_t>(sequence.tokens).first(end);
      const std::vector<BlockKey> keys = keys_of(tokens);
      for (int group = 0; group < allocator_.groups(); ++group) {
        if (!allocator_.rule(group).is_paged()) continue;
        const std::vector<BlockId>& blocks = chunk.table->blocks(group);
        for (size_t i = 0; i < keys.size(); ++i)
          if (!blocks[i].is_released()) allocator_.keep(blocks[i], group_key(keys[i], group));
      }
      if (chunk.last) keep_tail(chunk.id, tokens);
    }
  }

  void keep_tail(RequestId id, std::span<const int32_t> tokens) {
    const std::vector<BlockKey> keys = keys_of(tokens);
    const auto rest = tokens.subspan(keys.size() * kKvBlockTokens);
    if (rest.empty() || is_cut_into(sequences_.at(id))) return;
    const BlockKey key = next_key(key_before(keys), rest);
    for (int group = 0; group < allocator_.groups(); ++group)
      if (allocator_.rule(group).is_paged())
        allocator_.keep(scheduler_.blocks_of(id, group)[keys.size()], group_key(key, group));
  }

  // Keeps what is computed of a sequence that is about to lose its blocks.
  void keep_last(RequestId id) {
    const Sequence& sequence = sequences_.at(id);
    const auto tokens =
        std::span<const int32_t>(sequence.tokens).first(static_cast<size_t>(sequence.computed));
    if (tokens.empty()) return;
    keep_tail(id, tokens);
    const std::vector<BlockKey> keys = keys_of(tokens);
    const auto rest = tokens.subspan(keys.size() * kKvBlockTokens);
    const BlockKey key = rest.empty() ? keys.back() : next_key(key_before(keys), rest);
    // A state that includes drafts is of no use.
    if (scheduler_.computed_of(id) != sequence.computed) return;
    for (int group = 0; group < allocator_.groups(); ++group)
      if (!allocator_.rule(group).is_paged())
        allocator_.keep(scheduler_.blocks_of(id, group)[0], group_key(key, group));
  }

  FoundPrefix find(RequestId id, std::span<const RequestId> beginning) const override {
    constexpr size_t kWorthWaiting = 2;  // blocks
    const Sequence& sequence = sequences_.at(id);
    const auto tokens = std::span(sequence.tokens).first(sequence.tokens.size() - 1);
    const std::vector<BlockKey> keys = keys_of(tokens);
    const PrefixSearch search(allocator_, {.tokens = sequence.tokens,
                                           .most = tokens.size(),
                                           .first_key = first_key_,
                                           .keys = keys,
                                           .spans = scheduler_.spans(id),
                                           .has_stored_tail = true});
    FoundPrefix found = search.longest();
    const size_t whole = static_cast<size_t>(found.tokens) / kKvBlockTokens * kKvBlockTokens;
    const size_t worth = whole + kWorthWaiting * kKvBlockTokens;
    if (worth <= tokens.size() && !allocator_.has_states()) {
      for (const auto& [other, computing] : sequences_) {
        const bool begins = std::ranges::count(beginning, other) > 0;
        if (!(computing.runs || begins) || static_cast<size_t>(computing.computed) >= worth ||
            computing.tokens.size() < worth || computing.given.scored)
          continue;
        found.is_in_flight |=
            std::ranges::equal(std::span(computing.tokens).first(worth), tokens.first(worth));
      }
    }
    if (found.is_in_flight || !options_.stores) return found;
    found = search.longest([this](const BlockKey& key, int) { return stored_.contains(key); });
    const bool loads =
        std::ranges::any_of(found.loads, [](const auto& keys) { return !keys.empty(); });
    found.is_in_flight = loads && sequence.steps_to_fetch > 0;
    return found;
  }

  SimulatedOptions options_;
  BlockAllocator allocator_;
  mutable Scheduler scheduler_;
  BlockKey first_key_ = first_key("simulated");
  std::map<RequestId, Sequence> sequences_;
  std::vector<BlockId> all_blocks_;
  ByBlock<Contents> contents_;  // for each of its positions, a hash of all tokens up to there
  std::unordered_map<BlockKey, Contents> stored_;
  uint64_t next_id_ = 1;
  int64_t loads_ = 0;
  int64_t steps_ = 0;
  int64_t reused_ = 0;
  int64_t reused_windows_ = 0;
  PerGroup<int64_t> most_held_ = {};
  int64_t exhausted_ = 0;
  int64_t drafts_computed_ = 0, drafts_accepted_ = 0, tokens_cut_ = 0, copies_after_cuts_ = 0;
  int64_t cuts_ = 0, preempting_cuts_ = 0, uses_of_checkpoints_ = 0;
  uint32_t random_ = 1;
  int in_block_ = 0;
};

}  // namespace spillway::testing_schedule
