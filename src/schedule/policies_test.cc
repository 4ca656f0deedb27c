// SPDX-License-Identifier: Apache-2.0
#include "schedule/policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>

namespace spillway {
namespace {

SequenceView request(uint64_t client, int32_t tokens, int priority = 0) {
  return {.prompt = tokens,
          .known = tokens,
          .expected = tokens,
          .priority = priority,
          .client = client};
}

TEST(FairOrderTest, AClientsRequestsBeginAsTheyCame) {
  FairOrder order;
  double last = 0;
  for (const int32_t tokens : {100, 1, 50, 7}) {
    const double rank = order.rank(request(1, tokens)).value;
    EXPECT_GT(rank, last);
    last = rank;
  }
}

TEST(FairOrderTest, AClientWithManyRequestsDoesNotHoldUpOneWithFew) {
  FairOrder order;
  std::set<std::pair<double, uint64_t>> queue;
  for (int i = 0; i < 1000; ++i) queue.emplace(order.rank(request(1, 100)).value, 1);
  order.began(queue.begin()->first);
  const double late = order.rank(request(2, 100)).value;
  const auto before = std::ranges::count_if(queue, [&](const auto& at) { return at.first < late; });
  EXPECT_LE(before, 2);
}

TEST(FairOrderTest, SharesByTokensAndNotByRequests) {
  FairOrder order;
  std::set<std::tuple<double, int, uint64_t>> queue;
  std::map<uint64_t, int> tokens = {{1, 10}, {2, 90}}, served;
  int arrival = 0;
  for (int i = 0; i < 500; ++i)
    for (const auto& [client, size] : tokens)
      queue.emplace(order.rank(request(client, size)).value, arrival++, client);
  for (int i = 0; i < 200; ++i) {
    const auto [rank, when, client] = *queue.begin();
    queue.erase(queue.begin());
    order.began(rank);
    served[client] += tokens[client];
  }
  EXPECT_NEAR(static_cast<double>(served[1]) / served[2], 1, 0.1);
}

TEST(FairOrderTest, WhatMattersMoreBeginsBeforeWhatCameFirst) {
  FairOrder order;
  const double usual = order.rank(request(1, 100)).value;
  EXPECT_LT(order.rank(request(2, 100, -3)).value, usual);
  EXPECT_GT(order.rank(request(3, 100, 3)).value, usual);
}

// A request ends even if requests of higher priority keep coming.
TEST(FairOrderTest, NoRequestStarves) {
  FairOrder order;
  std::mt19937 random(3);
  std::set<std::tuple<double, int, int>> queue;
  int arrival = 0;
  queue.emplace(order.rank(request(1, 1000, 3)).value, arrival++, -1);
  int steps = 0;
  for (bool served = false; !served; ++steps) {
    ASSERT_LT(steps, 200'000);
    for (int i = 0; i < 2; ++i)
      queue.emplace(
          order.rank(request(2 + random() % 50, 1 + static_cast<int32_t>(random() % 9))).value,
          arrival++, 0);
    const auto [rank, when, who] = *queue.begin();
    queue.erase(queue.begin());
    order.began(rank);
    served = who == -1;
  }
  EXPECT_GT(steps, 10);
}

TEST(FairOrderTest, WhatLeavesBeforeItBeganCostsNothing) {
  FairOrder order;
  const double alone = order.rank(request(1, 10)).value;
  order.began(alone);
  const SequenceView large = request(2, 10'000);
  order.left(large, order.rank(large).cost);
  EXPECT_EQ(order.rank(request(2, 10)).value, order.rank(request(3, 10)).value);
}

TEST(PlannedAdmissionTest, ABlockIsOpenUntilItIsFull) {
  PlannedAdmission admission({.max_sequences = 4, .admit_in_blocks = true});
  EXPECT_EQ(admission.max_admissions({.running = 0}), 4);
  admission.began(3, /*full=*/false, /*running_before=*/0);
  EXPECT_EQ(admission.max_admissions({.running = 3}), 1);
  admission.began(0, /*full=*/true, /*running_before=*/3);
  EXPECT_EQ(admission.max_admissions({.running = 3}), 0);
  EXPECT_EQ(admission.max_admissions({.running = 0}), 4);
}

}  // namespace
}  // namespace spillway
