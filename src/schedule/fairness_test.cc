// SPDX-License-Identifier: Apache-2.0
// Tests that no request waits for ever, in whatever order others come and however many of them do.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "schedule/predicted_policies.h"
#include "schedule/test_engine.h"

namespace spillway::testing_schedule {
namespace {

// A scheduler whose sequences end after a given number of tokens; records the order in
// which they begin.
class Queue {
 public:
  Queue(int32_t blocks, int max_overtaking)
      : allocator_({blocks}),
        scheduler_(allocator_, {.max_step_tokens = 512, .admission = {.max_sequences = 64}},
                   /*prefixes=*/nullptr, policies(max_overtaking)) {}
  ~Queue() {
    for (const auto& [id, left] : left_) scheduler_.remove(id);
  }

  RequestId add(int32_t prompt, int answer, int predicted) {
    const auto id = RequestId{next_++};
    scheduler_.add({.id = id, .tokens = prompt, .predicted = prompt + predicted});
    left_[id] = answer;
    return id;
  }
  void step() {
    const StepPlan plan = scheduler_.next_step();
    for (const StepPlan::Beginning& beginning : plan.beginning)
      began.push_back(plan.chunks[beginning.chunk].id);
    for (const ScheduledChunk& chunk : plan.chunks) {
      if (!chunk.last) continue;
      if (--left_.at(chunk.id) > 0) {
        scheduler_.append(chunk.id);
      } else {
        scheduler_.remove(chunk.id);
        left_.erase(chunk.id);
      }
    }
  }
  void preempt_all() {
    scheduler_.preempt_all();
    began.clear();
  }
  std::vector<RequestId> running() const {
    std::vector<RequestId> ids;
    for (const SequenceView& view : scheduler_.at_work_and_next(0)) ids.push_back(view.id);
    return ids;
  }
  // The number of sequences that began before it, if it has begun.
  std::optional<int> try_place_of(RequestId id) const {
    const auto found = std::ranges::find(began, id);
    if (found == began.end()) return std::nullopt;
    return static_cast<int>(found - began.begin());
  }

  std::vector<RequestId> began;

 private:
  static SchedulingPolicies policies(int max_overtaking) {
    return {.order = nullptr,
            .admission = std::make_unique<PredictedAdmission>(PredictedAdmissionOptions{
                .policy = {.max_sequences = 64}, .max_overtaking = max_overtaking}),
            .preemption = std::make_unique<PreemptExceeded>()};
  }
  BlockAllocator allocator_;
  Scheduler scheduler_;
  std::map<RequestId, int> left_;
  uint64_t next_ = 1;
};

// Adds many short requests that have room beside the first sequence, while `waiting` has none;
// returns how many of them overtake it, or -1 if it never begins.
int passed_by(Queue& queue, RequestId waiting) {
  for (int i = 0; i < 60; ++i) queue.add(/*prompt=*/4, /*answer=*/3, /*predicted=*/3);
  for (int steps = 0; !queue.try_place_of(waiting); ++steps) {
    if (steps == 1000) return -1;
    queue.step();
  }
  return *queue.try_place_of(waiting) - 1;  // without the first one
}

TEST(FairnessTest, EightPassAnAnswerThatHasBegun) {
  Queue queue(/*blocks=*/20, /*max_overtaking=*/256);
  queue.add(16, 160, 160);
  const RequestId exceeding = queue.add(16, 300, 16);
  for (int i = 0; i < 135; ++i) queue.step();  // by now it is promised 256 tokens
  queue.preempt_all();
  EXPECT_EQ(passed_by(queue, exceeding), 8);
}

TEST(FairnessTest, NoMoreThanSaidPassOneThatHasNotBegun) {
  for (const int most : {0, 1, 5, 20}) {
    Queue queue(/*blocks=*/20, most);
    queue.add(16, 160, 160);
    queue.step();
    EXPECT_EQ(passed_by(queue, queue.add(16, 200, 200)), most);
  }
}

// Preemption chooses by age, so sequences that overtook it must not count as older than it is.
TEST(FairnessTest, OneThatComesBackIsAsOldAsItWas) {
  Queue queue(/*blocks=*/20, /*max_overtaking=*/256);
  const RequestId oldest = queue.add(16, 160, 160);
  const RequestId exceeding = queue.add(16, 300, 16);
  for (int i = 0; i < 135; ++i) queue.step();
  queue.preempt_all();
  RequestId passing{};
  for (int i = 0; i < 8; ++i) passing = queue.add(4, 120, 4);
  while (!queue.try_place_of(exceeding)) queue.step();
  const std::vector<RequestId> running = queue.running();
  ASSERT_TRUE(queue.try_place_of(passing) < queue.try_place_of(exceeding));
  EXPECT_EQ(std::ranges::count(running, oldest), 0) << "it has ended, and left room";
  ASSERT_GT(running.size(), 1U);
  EXPECT_EQ(running.front(), exceeding);
}

enum class Order { kFirst, kFair, kShortest };

struct Case {
  std::string name;
  Order order;
  // If nullopt, requests begin if there is room for their known tokens.
  std::optional<Packing> packing;
};

SchedulingPolicies policies_of(const Case& of, int sequences) {
  SchedulingPolicies policies;
  if (of.order == Order::kFair) policies.order = std::make_unique<FairOrder>();
  if (of.order == Order::kShortest) policies.order = std::make_unique<ShortestPredictedFirst>();
  if (of.packing) {
    policies.admission = std::make_unique<PredictedAdmission>(
        PredictedAdmissionOptions{.policy = {.max_sequences = sequences}, .packing = *of.packing});
    policies.preemption = std::make_unique<PreemptExceeded>();
  }
  return policies;
}

class StarvationTest : public testing::TestWithParam<Case> {};

// Long answers that were predicted short compete with an endless stream of requests that the order
// prefers: short ones, or each of another client. Whatever is predicted for these, each of the
// first requests must end.
TEST_P(StarvationTest, NoRequestStarvesWhilePreferredOnesArrive) {
  constexpr int kSequences = 24;
  constexpr size_t kOutstanding = 48;
  int64_t preemptions = 0;
  for (uint32_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
    SimulatedEngine engine(
        {.pools = {40},
         .limits = {.max_step_tokens = 200, .admission = {.max_sequences = kSequences}},
         .policies = [&] { return policies_of(GetParam(), kSequences); }});
    const auto request = [&](int prompt, int answer, int predicted, uint64_t client) {
      SimulatedRequest of{
          .prompt = {}, .answer = answer, .is_expected = false, .predicted = predicted};
      for (int i = 0; i < prompt; ++i) of.prompt.push_back(below(1000));
      of.client = client;
      return of;
    };
    std::vector<RequestId> first;
    for (int i = 0; i < 6; ++i)
      first.push_back(engine.submit(request(20 + below(60), 200 + below(200), 10, 1)));
    uint64_t client = 2;
    const auto next_request = [&] {
      const int answer = 5 + below(60);
      // Half of them are predicted as wrongly as the first ones.
      const int said = below(2) == 0 ? answer : 4;
      return request(1 + below(40), answer, said, client++);
    };
    const auto some_wait = [&] {
      return std::ranges::any_of(first, [&](RequestId id) { return !engine.has_ended(id); });
    };
    while (some_wait()) {
      while (engine.outstanding() < kOutstanding) engine.submit(next_request());
      engine.step();
      ASSERT_LT(engine.steps(), 6000) << "a request waits for ever";
      if (testing::Test::HasFailure()) return;
    }
    preemptions += engine.scheduler().preemptions();
    for (const RequestId id : engine.ids()) engine.cancel(id);
  }
  EXPECT_GT(preemptions, 0) << "nothing was tried";
}

INSTANTIATE_TEST_SUITE_P(Orders, StarvationTest,
                         testing::Values(Case{"FirstByRoom", Order::kFirst, {}},
                                         Case{"FairByRoom", Order::kFair, {}},
                                         Case{"FirstByPeak", Order::kFirst, Packing::kPeak},
                                         Case{"FairByPeak", Order::kFair, Packing::kPeak},
                                         Case{"ShortestByPeak", Order::kShortest, Packing::kPeak},
                                         Case{"FirstBySum", Order::kFirst, Packing::kSum},
                                         Case{"FairBySum", Order::kFair, Packing::kSum},
                                         Case{"ShortestBySum", Order::kShortest, Packing::kSum}),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace spillway::testing_schedule
