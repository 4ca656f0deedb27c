// SPDX-License-Identifier: Apache-2.0
#include "schedule/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

namespace spillway {
namespace {

constexpr RequestId id(uint64_t n) { return RequestId{n}; }

TEST(SchedulerTest, CutsAPromptIntoChunksAndMixesItWithDecoding) {
  BlockAllocator blocks(100);
  Scheduler scheduler(blocks, {.max_step_tokens = 8, .admission = {.max_sequences = 4}});
  scheduler.add(id(1), 3);
  StepPlan plan = scheduler.next_step();
  ASSERT_EQ(plan.chunks.size(), 1U);
  EXPECT_TRUE(plan.chunks[0].last);
  scheduler.append(id(1));
  scheduler.add(id(2), 10);
  plan = scheduler.next_step();
  ASSERT_EQ(plan.chunks.size(), 2U);
  EXPECT_EQ(plan.chunks[0].id, id(1));
  EXPECT_EQ(plan.chunks[0].start, 3);
  EXPECT_EQ(plan.chunks[1].tokens, 7);
  EXPECT_FALSE(plan.chunks[1].last);
  scheduler.append(id(1));
  plan = scheduler.next_step();
  ASSERT_EQ(plan.chunks.size(), 2U);
  EXPECT_EQ(plan.chunks[1].start, 7);
  EXPECT_EQ(plan.chunks[1].tokens, 3);
  EXPECT_TRUE(plan.chunks[1].last);
}

TEST(SchedulerTest, RunsNoMoreSequencesThanAllowed) {
  BlockAllocator blocks(100);
  Scheduler scheduler(blocks, {.max_step_tokens = 100, .admission = {.max_sequences = 2}});
  for (uint64_t n = 0; n < 5; ++n) scheduler.add(id(n), 4);
  EXPECT_EQ(scheduler.next_step().chunks.size(), 2U);
  EXPECT_EQ(scheduler.waiting(), 3);
  scheduler.remove(id(0));
  scheduler.remove(id(4));
  EXPECT_EQ(scheduler.next_step().chunks.size(), 1U);
  EXPECT_EQ(scheduler.waiting(), 1);
}

TEST(SchedulerTest, PreemptsTheYoungestWhenBlocksRunOut) {
  BlockAllocator blocks(4);
  Scheduler scheduler(blocks, {.max_step_tokens = 100, .admission = {.max_sequences = 8}});
  scheduler.add(id(1), 31);
  scheduler.add(id(2), 20);
  EXPECT_EQ(scheduler.next_step().chunks.size(), 2U);
  EXPECT_EQ(blocks.free(), 0);
  for (int i = 0; i < 2; ++i) {
    scheduler.append(id(1));
    scheduler.append(id(2));
    scheduler.next_step();
  }
  EXPECT_EQ(scheduler.preemptions(), 1);
  EXPECT_EQ(scheduler.running(), 1);
  EXPECT_EQ(scheduler.waiting(), 1);
  scheduler.remove(id(1));
  const StepPlan plan = scheduler.next_step();
  ASSERT_EQ(plan.chunks.size(), 1U);
  EXPECT_EQ(plan.chunks[0].start, 0);
  EXPECT_EQ(plan.chunks[0].tokens, 22);
}

// Makes a sequence with a prompt of 20 tokens generate; its first token is known.
void begin_answer(Scheduler& scheduler, RequestId sequence, int32_t prompt = 20) {
  scheduler.add(sequence, prompt);
  while (!scheduler.next_step().chunks.back().last) {
  }
  scheduler.append(sequence);
}

TEST(SchedulerTest, SeveralNewTokensAreGenerationAndNoPrompt) {
  BlockAllocator blocks(100);
  Scheduler scheduler(
      blocks, {.max_step_tokens = 64, .max_prompt_tokens = 4, .admission = {.max_sequences = 4}});
  begin_answer(scheduler, id(1));
  scheduler.next_step();
  scheduler.append(id(1), 7);
  scheduler.add(id(2), 30);
  StepPlan plan = scheduler.next_step();
  ASSERT_EQ(plan.chunks.size(), 2U);
  EXPECT_TRUE(plan.chunks[0].generates);
  EXPECT_TRUE(plan.chunks[0].last);
  EXPECT_EQ(plan.chunks[0].tokens, 7) << "the limit is for tokens of prompts";
  EXPECT_FALSE(plan.chunks[1].generates);
  EXPECT_EQ(plan.chunks[1].tokens, 4);
  // Tokens that a preempted sequence computes again count as prompt.
  scheduler.append(id(1));
  scheduler.preempt_all();
  plan = scheduler.next_step();
  EXPECT_EQ(plan.chunks[0].id, id(1));
  EXPECT_FALSE(plan.chunks[0].generates);
  EXPECT_EQ(plan.chunks[0].tokens, 29);
}

TEST(SchedulerTest, DraftsGoAlongOnceAndCountAsTokens) {
  BlockAllocator blocks(100);
  Scheduler scheduler(blocks, {.max_step_tokens = 64, .admission = {.max_sequences = 4}});
  begin_answer(scheduler, id(1));
  scheduler.propose(id(1), 5);
  StepPlan plan = scheduler.next_step();
  ASSERT_EQ(plan.chunks.size(), 1U);
  EXPECT_EQ(plan.chunks[0].start, 20);
  EXPECT_EQ(plan.chunks[0].tokens, 6);
  EXPECT_EQ(plan.chunks[0].drafted, 5);
  EXPECT_TRUE(plan.chunks[0].generates);
  EXPECT_EQ(scheduler.computed_of(id(1)), 26);
  scheduler.cut_back(id(1), 3);  // two drafts were accepted
  scheduler.append(id(1));
  plan = scheduler.next_step();
  EXPECT_EQ(plan.chunks[0].start, 23);
  EXPECT_EQ(plan.chunks[0].tokens, 1);
  EXPECT_EQ(plan.chunks[0].drafted, 0) << "they are proposed for one step";
  EXPECT_EQ(scheduler.recomputed_tokens(), 0);
}

// In a failed step, drafts were never known tokens, so they are not computed again.
TEST(SchedulerTest, DraftsOfASequenceThatIsPreemptedAreForgotten) {
  BlockAllocator blocks(100);
  Scheduler scheduler(blocks, {.max_step_tokens = 64, .admission = {.max_sequences = 4}});
  begin_answer(scheduler, id(1));
  scheduler.propose(id(1), 8);
  scheduler.next_step();
  scheduler.preempt_all();
  const StepPlan plan = scheduler.next_step();
  EXPECT_EQ(plan.chunks[0].tokens, 21);
  EXPECT_EQ(plan.chunks[0].drafted, 0);
}

TEST(SchedulerTest, DraftsTakeOnlyTokensThatAreLeft) {
  struct Case {
    const char* what;
    SchedulerLimits limits;
    int32_t blocks, prompt;  // blocks of the pool, prompt of another request
    int32_t drafted;
  };
  const Case cases[] = {
      {"no other request", {.max_step_tokens = 64}, 100, 0, 8},
      {"tokens of the step", {.max_step_tokens = 4}, 100, 0, 3},
      {"a prompt that takes the whole step", {.max_step_tokens = 24}, 100, 60, 0},
      {"a prompt that leaves some of it", {.max_step_tokens = 24}, 100, 19, 4},
      {"rows of logits", {.max_step_tokens = 64, .max_logit_rows = 4}, 100, 0, 3},
      {"rows of logits, of a prompt too", {.max_step_tokens = 64, .max_logit_rows = 4}, 100, 9, 2},
      // The answer's first token is at position 27, and two blocks have room for 32.
      {"the last block", {.max_step_tokens = 64}, 2, 0, 4},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    BlockAllocator blocks(c.blocks);
    Scheduler scheduler(blocks, c.limits);
    begin_answer(scheduler, id(1), 27);
    if (c.prompt > 0) scheduler.add(id(2), c.prompt);
    scheduler.propose(id(1), 8);
    const StepPlan plan = scheduler.next_step();
    EXPECT_EQ(plan.chunks[0].drafted, c.drafted);
    EXPECT_EQ(plan.chunks[0].tokens, 1 + c.drafted);
    EXPECT_EQ(plan.chunks.size(), c.prompt > 0 ? 2U : 1U);
    EXPECT_TRUE(plan.preempted.empty());
  }
}

TEST(SchedulerTest, DraftsPreemptNoSequenceAndWaitForPrompts) {
  BlockAllocator blocks(4);
  Scheduler scheduler(blocks, {.max_step_tokens = 64});
  begin_answer(scheduler, id(1), 31);
  begin_answer(scheduler, id(2), 20);
  ASSERT_EQ(blocks.free(), 0);
  scheduler.propose(id(1), 8);
  StepPlan plan = scheduler.next_step();
  EXPECT_TRUE(plan.preempted.empty());
  EXPECT_EQ(plan.chunks[0].drafted, 0);

  BlockAllocator many(100);
  Scheduler prompts_first(
      many, {.max_step_tokens = 16, .admission = {.max_sequences = 4, .prompts_first = true}});
  begin_answer(prompts_first, id(1));
  prompts_first.propose(id(1), 8);
  prompts_first.add(id(2), 20);
  EXPECT_EQ(prompts_first.next_step().chunks[0].id, id(2));
  EXPECT_EQ(prompts_first.next_step().chunks[0].id, id(2));
  plan = prompts_first.next_step();
  EXPECT_EQ(plan.chunks[0].id, id(1));
  EXPECT_EQ(plan.chunks[0].drafted, 8) << "nothing was drawn since they were proposed";
}

// Whatever is cut off, and wherever: no block is lost, and the sequence continues after the cut.
TEST(SchedulerTest, IsCutBackAtEveryLength) {
  for (int32_t answer = 1; answer <= 40; ++answer) {
    for (int32_t cut = 0; cut <= std::min(answer, kMostCutBack); ++cut) {
      SCOPED_TRACE(testing::Message() << cut << " of " << answer);
      BlockAllocator blocks(20);
      Scheduler scheduler(blocks, {.max_step_tokens = 64});
      begin_answer(scheduler, id(1));
      if (answer > 1) scheduler.append(id(1), answer - 1);
      scheduler.next_step();
      scheduler.cut_back(id(1), cut);
      const int32_t left = 20 + answer - cut;
      EXPECT_EQ(scheduler.computed_of(id(1)), left);
      EXPECT_EQ(blocks.free(), 20 - blocks_for_tokens(left));
      scheduler.append(id(1), 3);
      const StepPlan plan = scheduler.next_step();
      ASSERT_EQ(plan.chunks.size(), 1U);
      EXPECT_EQ(plan.chunks[0].start, left);
      EXPECT_EQ(plan.chunks[0].tokens, 3);
      EXPECT_TRUE(plan.chunks[0].generates);
      EXPECT_TRUE(plan.copies.empty());
      scheduler.remove(id(1));
      EXPECT_EQ(blocks.free(), 20);
      EXPECT_EQ(blocks.unpromised(Tier::kDevice), 20);
    }
  }
}

// One sequence is cut back while another begins with its blocks.
TEST(SchedulerTest, ABlockThatIsCutIntoIsCopiedWhereOthersHoldIt) {
  constexpr int32_t kTokens = 64;  // four blocks, all of them shared
  for (int32_t cut = 1; cut <= kMostCutBack; ++cut) {
    SCOPED_TRACE(cut);
    BlockAllocator blocks(20);
    Scheduler scheduler(blocks, {.max_step_tokens = 256});
    begin_answer(scheduler, id(1));
    scheduler.append(id(1), kTokens - 21);
    scheduler.next_step();
    const std::vector<BlockId> shared = scheduler.blocks_of(id(1));
    ASSERT_EQ(shared.size(), 4U);
    for (const BlockId block : shared) blocks.hold(block);  // as the other sequence
    scheduler.cut_back(id(1), cut);
    EXPECT_EQ(scheduler.computed_of(id(1)), kTokens - cut);
    scheduler.append(id(1));
    StepPlan plan = scheduler.next_step();
    ASSERT_EQ(plan.chunks.size(), 1U);
    EXPECT_EQ(plan.chunks[0].start, kTokens - cut);
    const bool is_cut_into = cut < kKvBlockTokens;
    ASSERT_EQ(plan.copies.size(), is_cut_into ? 1U : 0U);
    if (is_cut_into) {
      EXPECT_EQ(plan.copies[0].from, shared[3]);
      EXPECT_EQ(plan.copies[0].to, scheduler.blocks_of(id(1))[3]);
      EXPECT_EQ(blocks.holders(plan.copies[0].to), 1);
    }
    EXPECT_NE(scheduler.blocks_of(id(1))[3], shared[3]);
    scheduler.release_copies(plan);
    for (const BlockId block : shared) blocks.release(block);
    EXPECT_EQ(blocks.free(), 16);
    scheduler.remove(id(1));
    EXPECT_EQ(blocks.free(), 20);
  }
}

// The sequence ends, is preempted or cut again before the copy was made.
TEST(SchedulerTest, ABlockThatWasToBeCopiedIsGivenBack) {
  for (const int what : {0, 1, 2, 3}) {
    SCOPED_TRACE(what);
    BlockAllocator blocks(20);
    Scheduler scheduler(blocks, {.max_step_tokens = 256});
    begin_answer(scheduler, id(1));
    scheduler.append(id(1), 43);
    scheduler.next_step();
    const std::vector<BlockId> shared = scheduler.blocks_of(id(1));
    for (const BlockId block : shared) blocks.hold(block);
    scheduler.cut_back(id(1), 4);
    EXPECT_EQ(blocks.holders(shared[3]), 2);
    if (what == 0) scheduler.remove(id(1));
    if (what == 1) scheduler.preempt_all();
    if (what == 2) scheduler.cut_back(id(1), 5);   // in the same block
    if (what == 3) scheduler.cut_back(id(1), 14);  // before that block
    EXPECT_EQ(blocks.holders(shared[3]), what == 2 ? 2 : 1);
    if (what >= 2) {
      scheduler.append(id(1));
      const StepPlan plan = scheduler.next_step();
      EXPECT_EQ(plan.chunks[0].start, what == 2 ? 55 : 46);
      ASSERT_EQ(plan.copies.size(), 1U);
      EXPECT_EQ(plan.copies[0].from, shared[what == 2 ? 3 : 2]);
      scheduler.release_copies(plan);
    }
    for (const BlockId block : shared) blocks.release(block);
    scheduler.remove(id(1));
    EXPECT_EQ(blocks.free(), 20);
  }
}

TEST(SchedulerTest, ABlockThatIsCutIntoHasNoKeyForWhatIsGone) {
  BlockAllocator blocks(20);
  Scheduler scheduler(blocks, {.max_step_tokens = 256});
  begin_answer(scheduler, id(1));
  scheduler.append(id(1), 43);
  scheduler.next_step();
  const std::vector<BlockId> of = scheduler.blocks_of(id(1));
  const auto key = [](uint64_t n) { return BlockKey{n, n}; };
  blocks.keep(of[2], key(2));
  blocks.keep(of[3], BlockContents{.key = key(30), .tokens = 5});
  blocks.keep(of[3], BlockContents{.key = key(31), .tokens = 11});
  blocks.keep(of[3], key(32));
  scheduler.cut_back(id(1), 6);  // ten tokens of the last block are left
  EXPECT_TRUE(blocks.try_peek(key(2)));
  EXPECT_TRUE(blocks.try_peek(key(30)));
  EXPECT_FALSE(blocks.try_peek(key(31)));
  EXPECT_FALSE(blocks.try_peek(key(32)));
  // A block that is released whole keeps its contents.
  blocks.keep(of[3], BlockContents{.key = key(33), .tokens = 10});
  scheduler.cut_back(id(1), 10);
  EXPECT_TRUE(blocks.try_peek(key(33)));
  EXPECT_EQ(blocks.holders(of[3]), 0);
}

// Checks that all blocks that a chunk's tokens reach are there.
void check_reachable(const BlockAllocator& blocks, const ScheduledChunk& chunk) {
  for (int group = 0; group < blocks.groups(); ++group) {
    const std::vector<BlockId>& table = chunk.table->blocks(group);
    ASSERT_GE(static_cast<int64_t>(table.size()), blocks_for_tokens(chunk.start + chunk.tokens));
    for (int32_t i = 0; i < chunk.start + chunk.tokens; ++i) {
      const BlockId block = table[static_cast<size_t>(i / kKvBlockTokens)];
      if (i < blocks.rule(group).first_reachable(chunk.start)) continue;
      EXPECT_FALSE(block.is_released());
      if (i >= chunk.start) {
        EXPECT_EQ(blocks.holders(block), 1);
      }
    }
  }
}

// However often it is cut back, and wherever, blocks that were released are computed again.
TEST(SchedulerTest, IsCutBackAgainAndAgain) {
  int preempted = 0, rounds = 0;
  for (const StateRule rule : {StateRule{StateKind::kWindow, 1}, StateRule{StateKind::kWindow, 7},
                               StateRule{StateKind::kWindow, 100}, StateRule{StateKind::kChunk, 48},
                               StateRule{StateKind::kChunk, 5}, StateRule{}}) {
    for (const bool shared : {false, true}) {
      for (const Tier pool : {Tier::kDevice, Tier::kHost}) {
        for (int32_t length = 200; length < 233; ++length) {
          SCOPED_TRACE(testing::Message() << length << " window " << rule.window << " " << shared);
          const std::vector<int32_t> pools =
              pool == Tier::kDevice ? std::vector{40} : std::vector{0, 40};
          BlockAllocator blocks({{StateRule{}, pools}, {rule, pools}}, 0, 512);
          Scheduler scheduler(blocks, {.max_step_tokens = 512});
          begin_answer(scheduler, id(1));
          scheduler.append(id(1), length - 21);
          scheduler.release_copies(scheduler.next_step());
          int32_t known = length;
          while (known > 20 + kMostCutBack) {
            std::vector<BlockId> others;
            for (int group = 0; shared && group < blocks.groups(); ++group)
              for (const BlockId block : scheduler.table_of(id(1)).held(group))
                others.push_back(block);
            for (const BlockId block : others) blocks.hold(block);
            known -= kMostCutBack;
            const bool goes_on = scheduler.cut_back(id(1), kMostCutBack);
            EXPECT_EQ(scheduler.running(), goes_on ? 1 : 0);
            ++rounds;
            preempted += goes_on ? 0 : 1;
            EXPECT_TRUE(goes_on || rule.kind != StateKind::kFull);
            scheduler.append(id(1));
            ++known;
            StepPlan plan;
            do {
              plan = scheduler.next_step();
              ASSERT_EQ(plan.chunks.size(), 1U);
              check_reachable(blocks, plan.chunks[0]);
              scheduler.release_copies(plan);
            } while (!plan.chunks[0].last);
            EXPECT_EQ(plan.chunks[0].start + plan.chunks[0].tokens, known);
            EXPECT_EQ(scheduler.computed_of(id(1)), known);
            for (const BlockId block : others) blocks.release(block);
            if (testing::Test::HasFailure()) return;
          }
          scheduler.remove(id(1));
          EXPECT_EQ(blocks.free(), blocks.total());
        }
      }
    }
  }
  EXPECT_GT(preempted, 0);
  EXPECT_LT(preempted, rounds / 2);
}

// A model with a full group and a recurrent one, whose device pool has this many states.
std::vector<GroupPools> with_states(int32_t states) {
  return {{StateRule{}, {100, 100}}, {StateRule{StateKind::kRecurrent}, {states, 8}}};
}

TEST(SchedulerTest, DraftsOfARecurrentGroupHaveACheckpoint) {
  BlockAllocator blocks(with_states(2), 0, 64);
  Scheduler scheduler(blocks, {.max_step_tokens = 64, .admission = {.max_sequences = 4}});
  begin_answer(scheduler, id(1));
  const BlockId state = scheduler.blocks_of(id(1), 1)[0];
  scheduler.propose(id(1), 5);
  StepPlan plan = scheduler.next_step();
  EXPECT_EQ(plan.chunks[0].drafted, 5);
  ASSERT_EQ(scheduler.blocks_of(id(1), 1).size(), 2U);
  const BlockId checkpoint = scheduler.blocks_of(id(1), 1)[1];
  ASSERT_EQ(plan.copies.size(), 1U);
  EXPECT_EQ(plan.copies[0].from, state);
  EXPECT_EQ(plan.copies[0].to, checkpoint);
  scheduler.release_copies(plan);
  // Two of five drafts are accepted: they and the token before are computed again, beside
  // the new one.
  EXPECT_TRUE(scheduler.cut_back(id(1), 3));
  EXPECT_EQ(scheduler.computed_of(id(1)), 20);
  EXPECT_EQ(scheduler.blocks_of(id(1), 1), std::vector{checkpoint});
  EXPECT_EQ(blocks.free(Tier::kDevice, 1), 1);
  scheduler.append(id(1));
  scheduler.propose(id(1), 15);
  plan = scheduler.next_step();
  EXPECT_EQ(plan.chunks[0].start, 20);
  EXPECT_EQ(plan.chunks[0].drafted, kMostCutBack - 4) << "so many may have to be computed again";
  EXPECT_EQ(plan.chunks[0].tokens, kMostCutBack);
  EXPECT_TRUE(plan.chunks[0].generates);
  EXPECT_EQ(scheduler.recomputed_tokens(), 3);
  scheduler.release_copies(plan);
  // All drafts are accepted: nothing is computed again, and the checkpoint is released.
  EXPECT_TRUE(scheduler.cut_back(id(1), 0));
  scheduler.append(id(1));
  plan = scheduler.next_step();
  EXPECT_EQ(plan.chunks[0].start, 36);
  EXPECT_EQ(plan.chunks[0].tokens, 1);
  EXPECT_TRUE(plan.copies.empty());
  EXPECT_EQ(blocks.free(Tier::kDevice, 1), 1);
  // After a step without drafts there is no checkpoint to return to.
  EXPECT_FALSE(scheduler.cut_back(id(1), 1));
  EXPECT_EQ(scheduler.running(), 0);
  scheduler.append(id(1));
  plan = scheduler.next_step();
  EXPECT_EQ(plan.chunks[0].start, 0);
  EXPECT_EQ(plan.chunks[0].tokens, 37);
  scheduler.remove(id(1));
  EXPECT_EQ(blocks.free(), blocks.total());
}

TEST(SchedulerTest, DraftsWaitWhereNoStateIsFreeOnTheDevice) {
  struct Case {
    const char* what;
    int32_t states, others, drafted;
  };
  for (const Case& c : {Case{"there is one", 3, 1, 5}, Case{"others have them", 2, 1, 0},
                        Case{"it is in host memory", 0, 0, 0}}) {
    SCOPED_TRACE(c.what);
    BlockAllocator blocks(with_states(c.states), 0, 64);
    Scheduler scheduler(blocks, {.max_step_tokens = 64, .admission = {.max_sequences = 4}});
    for (int32_t i = 0; i < c.others; ++i)
      begin_answer(scheduler, id(2 + static_cast<uint64_t>(i)));
    begin_answer(scheduler, id(1));
    scheduler.propose(id(1), 5);
    const StepPlan plan = scheduler.next_step();
    for (const ScheduledChunk& chunk : plan.chunks) {
      EXPECT_EQ(chunk.drafted, chunk.id == id(1) ? c.drafted : 0);
      EXPECT_EQ(chunk.tokens, 1 + chunk.drafted);
    }
    EXPECT_TRUE(plan.preempted.empty());
    EXPECT_EQ(plan.copies.size(), c.drafted > 0 ? 1U : 0U);
    scheduler.release_copies(plan);
    // A cancelled or preempted sequence releases its checkpoint as well.
    if (c.others > 0) scheduler.preempt_all();
    scheduler.remove(id(1));
    scheduler.remove(id(2));
    EXPECT_EQ(blocks.free(), blocks.total());
  }
}

// Preemption does not choose the holder of the last blocks, but the youngest as always, and no more
// of them than necessary.
TEST(SchedulerTest, APoolThatShrinksPreemptsTheLeastValuable) {
  BlockAllocator allocator(8);
  Scheduler scheduler(allocator, {.max_step_tokens = 256});
  for (uint64_t n = 1; n <= 4; ++n) scheduler.add(id(n), 2 * kKvBlockTokens - 1);
  EXPECT_EQ(scheduler.next_step().chunks.size(), 4u);
  scheduler.remove(id(2));  // so that low ids are free, and the third sequence's are not the last
  EXPECT_TRUE(scheduler.choose_preempted(Tier::kDevice, 6).empty());
  const std::vector<RequestId> losing = scheduler.choose_preempted(Tier::kDevice, 5);
  EXPECT_EQ(losing, std::vector{id(4)});
  scheduler.preempt(losing);
  EXPECT_EQ(scheduler.preemptions(), 1);
  EXPECT_EQ(scheduler.running(), 2);
  const std::vector<BlockAllocator::Move> moves = allocator.resize(Tier::kDevice, 4);
  ASSERT_EQ(moves.size(), 2u) << "the third had blocks 4 and 5";
  scheduler.rename(moves);
  EXPECT_EQ(scheduler.blocks_of(id(1)), block_range(0, 2));
  EXPECT_EQ(scheduler.blocks_of(id(3)), block_range(2, 2));
  EXPECT_EQ(allocator.free(Tier::kDevice), 0);
  scheduler.remove(id(3));
  EXPECT_EQ(allocator.free(Tier::kDevice), 2);
}

// However many requests wait, one is found by its id immediately, and ends where it is.
TEST(SchedulerTest, EndsAnyOfThousandsWhereverItIs) {
  constexpr uint64_t kRequests = 10'000;
  BlockAllocator blocks(100);
  Scheduler scheduler(blocks, {.max_step_tokens = 64, .admission = {.max_sequences = 8}});
  for (uint64_t n = 0; n < kRequests; ++n) scheduler.add(id(n), 4);
  scheduler.next_step();
  ASSERT_EQ(scheduler.running(), 8);
  scheduler.preempt_all();  // back to the front, in their order
  StepPlan plan = scheduler.next_step();
  ASSERT_EQ(plan.chunks.size(), 8U);
  for (uint64_t n = 0; n < 8; ++n) EXPECT_EQ(plan.chunks[n].id, id(n));
  for (uint64_t n = 0; n < kRequests; n += 2) scheduler.remove(id(n));
  scheduler.remove(id(0));  // unknown by now
  EXPECT_EQ(scheduler.running() + scheduler.waiting(), static_cast<int>(kRequests / 2));
  plan = scheduler.next_step();
  EXPECT_EQ(scheduler.running(), 8);
  for (const ScheduledChunk& chunk : plan.chunks)
    EXPECT_EQ(static_cast<uint64_t>(chunk.id) % 2, 1U);
}

TEST(SchedulerTest, ARequestCancelledBeforeItBeganDelaysNoOther) {
  BlockAllocator blocks(200);
  Scheduler scheduler(blocks, {.max_step_tokens = 4096, .admission = {.max_sequences = 1}}, nullptr,
                      {.order = std::make_unique<FairOrder>(), .admission = {}, .preemption = {}});
  scheduler.add({.id = id(1), .tokens = 4, .client = 9});
  ASSERT_EQ(scheduler.next_step().chunks.size(), 1U);
  scheduler.add({.id = id(2), .tokens = 1000, .client = 1});
  scheduler.add({.id = id(3), .tokens = 10, .client = 1});  // after the large request
  scheduler.add({.id = id(4), .tokens = 50, .client = 2});
  scheduler.remove(id(2));
  scheduler.add({.id = id(5), .tokens = 10, .client = 1});
  scheduler.remove(id(1));
  for (const uint64_t expected : {3, 5, 4}) {
    const StepPlan plan = scheduler.next_step();
    ASSERT_EQ(plan.chunks.size(), 1U);
    EXPECT_EQ(plan.chunks[0].id, id(expected));
    scheduler.remove(id(expected));
  }
}

// Lets the second request begin with the first one's first block.
struct OneBlockPrefix : PrefixSource {
  explicit OneBlockPrefix(BlockAllocator& of) : blocks(of) {}
  FoundPrefix find(RequestId of, std::span<const RequestId>) const override {
    const auto found = of == id(2) ? blocks.try_peek(key) : std::nullopt;
    if (!found) return {};
    return {.blocks = {{{*found}}}, .tokens = kKvBlockTokens};
  }
  BlockAllocator& blocks;
  BlockKey key = first_key("a");
};

TEST(SchedulerTest, BeginsBehindWhatIsThere) {
  BlockAllocator blocks(4);
  OneBlockPrefix prefix(blocks);
  Scheduler scheduler(blocks, {.max_step_tokens = 100, .admission = {.max_sequences = 8}}, &prefix);
  scheduler.add(id(1), 20);
  StepPlan plan = scheduler.next_step();
  blocks.keep(plan.chunks[0].block_table->front(), prefix.key);
  const BlockId shared = plan.chunks[0].block_table->front();
  scheduler.append(id(1));
  scheduler.add(id(2), 30);
  plan = scheduler.next_step();
  ASSERT_EQ(plan.chunks.size(), 2U);
  EXPECT_EQ(plan.chunks[1].start, 16);
  EXPECT_EQ(plan.chunks[1].tokens, 14);
  EXPECT_EQ(plan.chunks[1].reused, 16);
  EXPECT_EQ(plan.chunks[1].block_table->front(), shared);
  EXPECT_EQ(blocks.free(), 1) << "three blocks for both";
  scheduler.remove(id(1));
  EXPECT_EQ(blocks.free(), 2) << "the shared one has a holder";
  scheduler.remove(id(2));
  EXPECT_EQ(blocks.free(), 4);
}

// A prefix is of no use in a pool that has no room for the rest.
TEST(SchedulerTest, BeginsAnewWhereThereIsRoomForAllOfIt) {
  BlockAllocator blocks(std::vector<int32_t>{3, 16});
  OneBlockPrefix prefix(blocks);
  Scheduler scheduler(blocks, {.max_step_tokens = 200, .admission = {.max_sequences = 8}}, &prefix);
  scheduler.add(id(1), 40, 48);
  StepPlan plan = scheduler.next_step();
  blocks.keep(plan.chunks[0].block_table->front(), prefix.key);
  scheduler.append(id(1));
  scheduler.add(id(2), 100, 120);
  plan = scheduler.next_step();
  ASSERT_EQ(plan.chunks.size(), 2U);
  EXPECT_TRUE(plan.exhausted.empty());
  EXPECT_EQ(plan.chunks[1].start, 0);
  EXPECT_EQ(plan.chunks[1].tokens, 100);
  EXPECT_EQ(plan.chunks[1].reused, 0);
  scheduler.remove(id(1));
  scheduler.remove(id(2));
  EXPECT_EQ(blocks.free(), 19);
}

TEST(SchedulerTest, EndsASequenceThatExceedsTheWholeCache) {
  BlockAllocator blocks(1);
  Scheduler scheduler(blocks, {});
  scheduler.add(id(1), 16);
  EXPECT_EQ(scheduler.next_step().chunks.size(), 1U);
  scheduler.append(id(1));
  const StepPlan plan = scheduler.next_step();
  EXPECT_TRUE(plan.chunks.empty());
  ASSERT_EQ(plan.exhausted.size(), 1U);
  scheduler.remove(id(1));
  EXPECT_EQ(blocks.free(), 1);
}

// Runs steps until nothing is left, and returns which requests begin in each step.
std::vector<std::vector<uint64_t>> beginnings(Scheduler& scheduler,
                                              std::map<RequestId, int> answers) {
  std::vector<std::vector<uint64_t>> begun;
  while (!answers.empty() && begun.size() < 1000) {
    const StepPlan plan = scheduler.next_step();
    begun.emplace_back();
    for (const ScheduledChunk& chunk : plan.chunks) {
      if (chunk.start == 0) begun.back().push_back(static_cast<uint64_t>(chunk.id));
      if (!chunk.last) continue;
      if (--answers.at(chunk.id) == 0) {
        scheduler.remove(chunk.id);
        answers.erase(chunk.id);
      } else {
        scheduler.append(chunk.id);
      }
    }
  }
  EXPECT_TRUE(answers.empty());
  return begun;
}

using Beginnings = std::vector<std::vector<uint64_t>>;

TEST(SchedulerTest, BeginsABlockWhenAllOfTheOneBeforeHaveEnded) {
  BlockAllocator blocks(100);
  Scheduler scheduler(blocks, {.admission = {.max_sequences = 3, .admit_in_blocks = true}});
  std::map<RequestId, int> answers = {{id(1), 1}, {id(2), 4}, {id(3), 2}, {id(4), 1},
                                      {id(5), 2}, {id(6), 1}, {id(7), 1}};
  for (const auto& [request, answer] : answers) scheduler.add(request, 5);
  EXPECT_EQ(beginnings(scheduler, answers),
            (Beginnings{{1, 2, 3}, {}, {}, {}, {4, 5, 6}, {}, {7}}));
}

TEST(SchedulerTest, BeginsABlockOverSeveralStepsWhereOneIsTooSmall) {
  BlockAllocator blocks(100);
  Scheduler scheduler(
      blocks, {.max_step_tokens = 8, .admission = {.max_sequences = 3, .admit_in_blocks = true}});
  std::map<RequestId, int> answers = {{id(1), 2}, {id(2), 2}, {id(3), 3}, {id(4), 1}};
  for (const auto& [request, answer] : answers) scheduler.add(request, 6);
  EXPECT_EQ(beginnings(scheduler, answers), (Beginnings{{1, 2}, {3}, {}, {}, {}, {4}}));
}

TEST(SchedulerTest, MakesABlockOfWhatThereIsRoomFor) {
  BlockAllocator blocks(4);
  Scheduler scheduler(blocks, {.admission = {.max_sequences = 8, .admit_in_blocks = true}});
  std::map<RequestId, int> answers = {{id(1), 3}, {id(2), 1}, {id(3), 1}};
  for (const auto& [request, answer] : answers) scheduler.add(request, 24);
  EXPECT_EQ(beginnings(scheduler, answers), (Beginnings{{1, 2}, {}, {}, {3}}));
}

TEST(SchedulerTest, ABlockIsOverWhenItsPreemptedSequencesHaveEndedToo) {
  BlockAllocator blocks(3);
  Scheduler scheduler(blocks, {.admission = {.max_sequences = 2, .admit_in_blocks = true}});
  std::map<RequestId, int> answers = {{id(1), 20}, {id(2), 4}, {id(3), 1}};
  for (const auto& [request, answer] : answers) scheduler.add(request, 15);
  const Beginnings begun = beginnings(scheduler, answers);
  EXPECT_EQ(scheduler.preemptions(), 1);
  EXPECT_EQ(begun.front(), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(begun.back(), std::vector<uint64_t>{3});
  EXPECT_EQ(blocks.free(), blocks.total());
}

// There are two batch blocks of two; the second prompt of each takes two steps.
TEST(SchedulerTest, ComputesPromptsFirstAndApartFromNewTokens) {
  BlockAllocator blocks(100);
  Scheduler scheduler(
      blocks, {.max_step_tokens = 8,
               .admission = {.max_sequences = 2, .admit_in_blocks = true, .prompts_first = true}});
  std::map<RequestId, int> answers = {{id(1), 2}, {id(2), 3}, {id(3), 1}, {id(4), 2}};
  for (const auto& [request, answer] : answers) scheduler.add(request, request == id(4) ? 8 : 7);
  std::vector<std::vector<int32_t>> steps;  // in each step, the tokens of each sequence
  while (!answers.empty() && steps.size() < 100) {
    steps.emplace_back();
    for (const ScheduledChunk& chunk : scheduler.next_step().chunks) {
      steps.back().push_back(chunk.tokens);
      if (!chunk.last) continue;
      if (--answers.at(chunk.id) > 0) {
        scheduler.append(chunk.id);
      } else {
        scheduler.remove(chunk.id);
        answers.erase(chunk.id);
      }
    }
  }
  EXPECT_EQ(steps, (std::vector<std::vector<int32_t>>{{7, 1}, {6}, {1, 1}, {1}, {7, 1}, {7}, {1}}));
}

TEST(SchedulerTest, StaggersSequencesThatBegin) {
  BlockAllocator blocks(100);
  Scheduler scheduler(blocks, {.admission = {.max_sequences = 4, .max_admissions = 2}});
  std::map<RequestId, int> answers;
  for (uint64_t n = 1; n <= 6; ++n) {
    answers[id(n)] = 3;
    scheduler.add(id(n), 5);
  }
  EXPECT_EQ(beginnings(scheduler, answers), (Beginnings{{1, 2}, {3, 4}, {}, {5, 6}, {}, {}}));
}

TEST(SchedulerTest, StaggersByTheAnswersThatAreExpected) {
  EXPECT_EQ(staggered_admissions(8, 4), 2);
  EXPECT_EQ(staggered_admissions(8, 5), 2);
  EXPECT_EQ(staggered_admissions(8, 1000), 1);
  EXPECT_EQ(staggered_admissions(8, 0), 8);
  BlockAllocator blocks(100);
  Scheduler scheduler(blocks, {.admission = {.max_sequences = 8, .stagger = true}});
  std::map<RequestId, int> answers;
  for (uint64_t n = 0; n < 20; ++n) {
    answers[id(n)] = 4;
    scheduler.add(id(n), 5, 9);
  }
  const Beginnings begun = beginnings(scheduler, answers);
  for (size_t step = 0; step < 10; ++step) EXPECT_EQ(begun[step].size(), 2U) << step;
  EXPECT_EQ(begun.size(), 13U);
}

// Most requests ask for longer answers than they get.
TEST(SchedulerTest, StaggersByTheAnswersThatThereWere) {
  BlockAllocator blocks(100);
  Scheduler scheduler(blocks, {.admission = {.max_sequences = 8, .stagger = true}});
  scheduler.add(id(1000), 5, 505);
  scheduler.add(id(1001), 5, 505);
  EXPECT_EQ(beginnings(scheduler, {{id(1000), 2}, {id(1001), 2}}),
            (Beginnings{{1000}, {1001}, {}}));
  std::map<RequestId, int> answers;
  for (uint64_t n = 0; n < 8; ++n) {
    answers[id(n)] = 2;
    scheduler.add(id(n), 5);
  }
  EXPECT_EQ(beginnings(scheduler, answers), (Beginnings{{0, 1, 2, 3}, {4, 5, 6, 7}, {}}));
}

// Whatever happens, every request must end, no token be computed twice without a preemption, and no
// block be in two tables.
TEST(SchedulerTest, FinishesRandomLoadsWithoutLosingOrSharingBlocks) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    BlockAllocator blocks(static_cast<int32_t>(8 + random() % 20));
    Scheduler scheduler(blocks, {.max_step_tokens = static_cast<int>(1 + random() % 40),
                                 .admission = {.max_sequences = 6,
                                               .max_admissions = static_cast<int>(random() % 3),
                                               .stagger = random() % 3 == 0,
                                               .admit_in_blocks = random() % 3 == 0,
                                               .prompts_first = random() % 3 == 0}});
    struct State {
      int32_t known, target, computed;
    };
    std::map<RequestId, State> states;
    uint64_t next = 0;
    int steps = 0;
    while (next < 20 || !states.empty()) {
      ASSERT_LT(++steps, 20'000);
      if (next < 20 && random() % 3 == 0) {
        const auto prompt = static_cast<int32_t>(1 + random() % 60);
        states[id(next)] = {prompt, prompt + static_cast<int32_t>(random() % 60), 0};
        scheduler.add(id(next++), prompt);
      }
      const StepPlan plan = scheduler.next_step();
      std::set<BlockId> seen;
      for (const ScheduledChunk& chunk : plan.chunks) {
        State& state = states.at(chunk.id);
        ASSERT_TRUE(chunk.start == state.computed || chunk.start == 0);
        state.computed = chunk.start + chunk.tokens;
        ASSERT_LE(state.computed, state.known);
        ASSERT_EQ(chunk.last, state.computed == state.known);
        ASSERT_GE(static_cast<int64_t>(chunk.block_table->size()) * 16, state.computed);
        for (const BlockId block : *chunk.block_table) ASSERT_TRUE(seen.insert(block).second);
      }
      for (const ScheduledChunk& chunk : plan.chunks) {
        State& state = states.at(chunk.id);
        if (!chunk.last) continue;
        if (state.known >= state.target) {
          scheduler.remove(chunk.id);
          states.erase(chunk.id);
        } else {
          ++state.known;
          scheduler.append(chunk.id);
        }
      }
      for (const RequestId ended : plan.exhausted) {
        scheduler.remove(ended);
        states.erase(ended);
      }
    }
    EXPECT_EQ(blocks.free(), blocks.total());
  }
}

}  // namespace
}  // namespace spillway
