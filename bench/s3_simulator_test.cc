// SPDX-License-Identifier: Apache-2.0
#include "bench/s3_simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/error.h"
#include "tensor/kv_format.h"

namespace spillway {
namespace {

constexpr int kWholeContext = 2048;

PaperModel small_model() {
  return {.name = "small", .parameters = 1e9, .layers = 10, .width = 1000};
}

// Returns a machine with KV memory for this many tokens, plus half a block so that rounding takes
// none of it.
PaperMachine machine_for(int64_t kv_tokens) {
  const PaperModel model = small_model();
  PaperMachine machine;
  machine.reserved_share = 0;
  machine.memory_bytes = model.weight_bytes() +
                         (static_cast<double>(kv_tokens) + kKvBlockTokens / 2.0) * model.kv_bytes();
  return machine;
}

// Makes answers of very different lengths, each predicted wrongly by up to `error` times its
// length.
std::vector<TraceRequest> mixed_trace(double error) {
  std::mt19937 random(3);
  const auto share = [&random] { return static_cast<double>(random() % 1000) / 1000; };
  std::vector<TraceRequest> trace;
  for (int i = 0; i < 300; ++i) {
    const auto prompt = static_cast<int32_t>(5 + random() % 60);
    const auto answer = static_cast<int32_t>(1 + 600 * share() * share() * share());
    const double wrong = 1 + error * (2 * share() - 1);
    trace.push_back({.prompt = prompt,
                     .answer = answer,
                     .predicted = std::max<int64_t>(1, static_cast<int64_t>(answer * wrong))});
  }
  return trace;
}

std::vector<TraceRequest> predicted_as(std::vector<TraceRequest> trace, int64_t tokens) {
  for (TraceRequest& request : trace) request.predicted = tokens;
  return trace;
}

int64_t answer_tokens(const std::vector<TraceRequest>& trace) {
  int64_t tokens = 0;
  for (const TraceRequest& request : trace) tokens += request.answer;
  return tokens;
}

SimulationResult simulate(int64_t kv_tokens, const Policy& policy,
                          const std::vector<TraceRequest>& trace) {
  return simulate_serving(small_model(), machine_for(kv_tokens), policy, trace);
}

std::vector<Policy> every_policy() {
  std::vector<Policy> all;
  for (const Order order : {Order::kFirstCome, Order::kLongestFirst, Order::kShortestFirst})
    for (const Room room : {Room::kOnDemand, Room::kSum, Room::kPeak})
      for (const bool preempts_exceeded : {false, true})
        for (const bool swaps : {false, true})
          for (const double token_s : {0.0, 0.0025})
            all.push_back({.order = order,
                           .room = room,
                           .preempts_exceeded = preempts_exceeded,
                           .swaps = swaps,
                           .token_s = token_s});
  return all;
}

TEST(S3SimulatorTest, EveryPolicyGeneratesAllTokensWithinMemory) {
  const std::vector<TraceRequest> trace = mixed_trace(0.9);
  for (const Policy& policy : every_policy()) {
    SCOPED_TRACE(testing::Message()
                 << "order " << static_cast<int>(policy.order) << ", room "
                 << static_cast<int>(policy.room) << ", outgrown " << policy.preempts_exceeded
                 << ", swaps " << policy.swaps << ", pace " << policy.token_s);
    const SimulationResult result = simulate(2000, policy, trace);
    EXPECT_EQ(result.requests, std::ssize(trace));
    EXPECT_EQ(result.answer_tokens, answer_tokens(trace));
    EXPECT_LE(result.most_memory_share, 1);
    EXPECT_NEAR(result.mean_batch * static_cast<double>(result.iterations),
                static_cast<double>(result.answer_tokens), 0.5);
    EXPECT_LE(result.mean_batch, static_cast<double>(result.most_sequences));
    EXPECT_LE(result.mean_latency_s, result.p99_latency_s);
    if (policy.swaps) {
      EXPECT_EQ(result.recomputed_tokens, 0);
    }
  }
}

// If paging did not fill memory, the tests above would say nothing about memory.
TEST(S3SimulatorTest, PagingFillsMemoryAndPaysForIt) {
  const std::vector<TraceRequest> trace = predicted_as(mixed_trace(0), 0);
  const SimulationResult result = simulate(2000, {}, trace);
  EXPECT_GT(result.most_memory_share, 0.9);
  EXPECT_GT(result.preemptions, 0);
  EXPECT_GT(result.recomputed_tokens, result.preemptions);
  EXPECT_GT(result.penalty_s, 0);
}

TEST(S3SimulatorTest, WhoseLengthIsKnownIsNeverPreempted) {
  for (const Order order : {Order::kFirstCome, Order::kLongestFirst, Order::kShortestFirst}) {
    SCOPED_TRACE(static_cast<int>(order));
    Policy policy{.order = order, .room = Room::kSum, .preempts_exceeded = true};
    const SimulationResult sum = simulate(2000, policy, mixed_trace(0));
    EXPECT_EQ(sum.preemptions, 0);
    EXPECT_EQ(sum.extensions, 0);
    EXPECT_EQ(sum.recomputed_tokens, 0);
    EXPECT_EQ(sum.penalty_s, 0);
    // The peak assumes that last blocks are half full, as they are on average. With few sequences,
    // one of hundreds may then find no free block.
    policy.room = Room::kPeak;
    const SimulationResult peak = simulate(2000, policy, mixed_trace(0));
    EXPECT_LE(peak.preemptions, peak.requests / 100);
    EXPECT_EQ(peak.extensions, 0);
  }
}

TEST(S3SimulatorTest, AnswersThatOutgrowTheirReservationAreExtended) {
  const Policy policy{.room = Room::kSum, .preempts_exceeded = true};
  const SimulationResult result = simulate(2000, policy, predicted_as(mixed_trace(0), 2));
  EXPECT_GT(result.extensions, 0);
  EXPECT_GT(result.preemptions, 0);
}

TEST(S3SimulatorTest, WholeContextsAreAsManyAsFit) {
  const std::vector<TraceRequest> trace = predicted_as(mixed_trace(0), kWholeContext);
  for (const int fit : {1, 3}) {
    const Policy orca{.room = Room::kSum, .most_tokens = kWholeContext};
    const SimulationResult result = simulate(fit * kWholeContext + kWholeContext / 2, orca, trace);
    EXPECT_EQ(result.most_sequences, fit);
    EXPECT_LE(result.mean_batch, fit);
    EXPECT_EQ(result.preemptions, 0);
  }
}

TEST(S3SimulatorTest, MoreSequencesFitByTheirPeakThanByTheirSum) {
  const std::vector<TraceRequest> trace = mixed_trace(0);
  const SimulationResult sum = simulate(2000, {.room = Room::kSum}, trace);
  const SimulationResult peak = simulate(2000, {.room = Room::kPeak}, trace);
  EXPECT_GT(peak.mean_batch, sum.mean_batch);
  EXPECT_LT(peak.generation_s, sum.generation_s);
}

// Requests run one at a time: a long answer before ten short ones, or after them.
TEST(S3SimulatorTest, TheShortestFirstWaitLess) {
  std::vector<TraceRequest> trace = {{.prompt = 8, .answer = 500, .predicted = 500}};
  for (int i = 0; i < 10; ++i) trace.push_back({.prompt = 8, .answer = 10, .predicted = 10});
  Policy policy{.max_sequences = 1};
  const SimulationResult first_come = simulate(kWholeContext, policy, trace);
  policy.order = Order::kShortestFirst;
  const SimulationResult shortest = simulate(kWholeContext, policy, trace);
  EXPECT_EQ(first_come.most_sequences, 1);
  EXPECT_EQ(shortest.iterations, first_come.iterations);
  EXPECT_NEAR(shortest.generation_s, first_come.generation_s, 1e-9);
  // In steps, the means are 550 (of 500, 510, ... 600) and 104.5 (of 10 to 100 and 600).
  EXPECT_NEAR(first_come.mean_latency_s / shortest.mean_latency_s, 550 / 104.5, 0.2);
}

// Both requests have two blocks when both need a third, and there are four. The younger is
// preempted with 16 tokens of its prompt and 17 of its answer, and is resumed when the older has
// ended.
TEST(S3SimulatorTest, WhatIsComputedAgainIsCounted) {
  static_assert(kKvBlockTokens == 16);
  const std::vector<TraceRequest> trace(2, {.prompt = 16, .answer = 32});
  const SimulationResult again = simulate(4 * kKvBlockTokens, {}, trace);
  EXPECT_EQ(again.preemptions, 1);
  EXPECT_EQ(again.recomputed_tokens, 16 + 17);
  const SimulationResult moved = simulate(4 * kKvBlockTokens, {.swaps = true}, trace);
  EXPECT_EQ(moved.preemptions, 1);
  EXPECT_EQ(moved.recomputed_tokens, 0);
  const PaperMachine machine = machine_for(4 * kKvBlockTokens);
  EXPECT_NEAR(moved.penalty_s, 2 * (16 + 17) * small_model().kv_bytes() / machine.link_bytes_per_s,
              1e-12);
  EXPECT_EQ(moved.iterations, again.iterations);
}

TEST(S3SimulatorTest, ThePaceLimitsHowManyAreAtWork) {
  const std::vector<TraceRequest> trace = mixed_trace(0);
  Policy policy{.room = Room::kPeak};
  const SimulationResult all = simulate(20'000, policy, trace);
  // Ten layers take 0.134 ms a sequence; token_s is the time of 20 sequences and the weights.
  policy.token_s = machine_for(20'000).step_s(small_model(), 20, 0, 0);
  const SimulationResult paced = simulate(20'000, policy, trace);
  EXPECT_GT(all.most_sequences, 40);
  EXPECT_LE(paced.most_sequences, 21);
  EXPECT_GT(paced.steps_in_pace, 0.9);
  EXPECT_GT(paced.slowest_step_s, 0);
  EXPECT_LT(paced.slowest_step_s, all.slowest_step_s);
}

TEST(S3SimulatorTest, RequestsWaitUntilTheyCome) {
  std::vector<TraceRequest> trace = {{.prompt = 8, .answer = 10, .predicted = 10},
                                     {.prompt = 8, .answer = 10, .predicted = 10}};
  trace[1].arrival_s = 100;
  const SimulationResult result = simulate(kWholeContext, {}, trace);
  EXPECT_EQ(result.iterations, 20);  // they never run together
  EXPECT_EQ(result.most_sequences, 1);
  EXPECT_NEAR(result.mean_latency_s, result.generation_s / 2, 1e-9);
}

TEST(S3SimulatorTest, TheSameTraceGivesTheSameTwice) {
  const std::vector<TraceRequest> trace = mixed_trace(0.9);
  for (const Policy& policy : every_policy()) {
    const SimulationResult a = simulate(2000, policy, trace);
    const SimulationResult b = simulate(2000, policy, trace);
    EXPECT_EQ(a.iterations, b.iterations);
    EXPECT_EQ(a.preemptions, b.preemptions);
    EXPECT_EQ(a.extensions, b.extensions);
    EXPECT_EQ(a.recomputed_tokens, b.recomputed_tokens);
    EXPECT_EQ(a.most_sequences, b.most_sequences);
    EXPECT_EQ(a.generation_s, b.generation_s);
    EXPECT_EQ(a.penalty_s, b.penalty_s);
    EXPECT_EQ(a.mean_latency_s, b.mean_latency_s);
    EXPECT_EQ(a.p99_latency_s, b.p99_latency_s);
  }
}

TEST(S3SimulatorTest, WhatDoesNotFitIsRefused) {
  EXPECT_THROW(simulate(2000, {}, {}), Error);
  EXPECT_THROW(simulate(2 * kKvBlockTokens, {}, {{.prompt = 16, .answer = 32}}), Error);
  const PaperModel largest = paper_models().back();
  EXPECT_THROW(simulate_serving(largest, PaperMachine{}, {}, {TraceRequest{}}), Error);
}

}  // namespace
}  // namespace spillway
