// SPDX-License-Identifier: Apache-2.0
#include "schedule/user_turns.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "schedule/scheduler.h"

namespace spillway {
namespace {

constexpr UserTurns::Client kClient{7, 0};

TEST(UserTurnsTest, UsersOfAClientTakeTurns) {
  UserTurns turns;
  for (const double expected : {10, 20, 30}) {
    const UserTurns::Turn turn = turns.arrive(kClient, 1, 10);
    EXPECT_EQ(turn.value, expected);
    EXPECT_FALSE(turn.may_overtake);
  }
  EXPECT_TRUE(turns.arrive(kClient, 2, 10).may_overtake);
  EXPECT_FALSE(turns.arrive({7, 1}, 2, 10).may_overtake) << "another priority is another queue";
  EXPECT_FALSE(turns.arrive({8, 0}, 2, 10).may_overtake) << "and so is another client";
}

TEST(UserTurnsTest, WhatBeganBeforeAUserCameIsNotOwedToIt) {
  UserTurns turns;
  for (int i = 0; i < 4; ++i) turns.arrive(kClient, 1, 10);
  turns.began(kClient, 10);
  turns.began(kClient, 20);
  EXPECT_EQ(turns.arrive(kClient, 2, 10).value, 30);
}

TEST(UserTurnsTest, WhatLeftIsNotCharged) {
  UserTurns turns;
  turns.arrive(kClient, 1, 1000);
  turns.arrive(kClient, 2, 5);
  turns.left(kClient, 1, 1000);
  EXPECT_EQ(turns.arrive(kClient, 1, 10).value, 10);
}

// Records the order in which a scheduler with room for one sequence begins requests, named
// "client.user".
class SharesTest : public testing::Test {
 protected:
  void add(uint64_t client, uint64_t user, int32_t tokens = 10) {
    scheduler_.add({.id = RequestId{++last_}, .tokens = tokens, .client = client, .user = user});
    names_.push_back(std::to_string(client) + "." + std::to_string(user));
  }
  std::string begin_next() {
    const StepPlan plan = scheduler_.next_step();
    if (plan.chunks.size() != 1) return "none";
    const RequestId id = plan.chunks[0].id;
    scheduler_.remove(id);
    return names_[static_cast<size_t>(id) - 1];
  }
  std::vector<std::string> begin_all() {
    std::vector<std::string> order;
    while (scheduler_.waiting() > 0 && order.size() < 100) order.push_back(begin_next());
    return order;
  }

  BlockAllocator blocks_{200};
  Scheduler scheduler_{blocks_,
                       {.max_step_tokens = 4096, .admission = {.max_sequences = 1}},
                       nullptr,
                       {.order = std::make_unique<FairOrder>(), .admission = {}, .preemption = {}}};
  std::vector<std::string> names_;
  uint64_t last_ = 0;
};

using Order = std::vector<std::string>;

TEST_F(SharesTest, AUserWithManyDoesNotHoldUpAnotherOfTheSameClient) {
  for (int i = 0; i < 4; ++i) add(1, 1);
  add(1, 2);
  add(1, 2);
  EXPECT_EQ(begin_all(), (Order{"1.1", "1.2", "1.1", "1.2", "1.1", "1.1"}));
}

TEST_F(SharesTest, ManyUsersHaveNoMoreThanTheirClientsShare) {
  for (uint64_t user = 0; user < 6; ++user) add(1, user);
  for (int i = 0; i < 6; ++i) add(2, 0);
  const Order order = begin_all();
  for (size_t i = 0; i < order.size(); i += 2)
    EXPECT_NE(order[i].front(), order[i + 1].front()) << "at " << i;
}

// This also holds for users whose requests come while others of the client wait; among equals the
// earlier goes first.
TEST_F(SharesTest, NewUsersPutOnlyTheirOwnClientBack) {
  for (int i = 0; i < 3; ++i) add(1, 1);
  for (int i = 0; i < 3; ++i) add(2, 1);
  for (uint64_t user = 2; user < 5; ++user) add(1, user);
  EXPECT_EQ(begin_all(), (Order{"1.1", "2.1", "2.1", "1.2", "2.1", "1.3", "1.4", "1.1", "1.1"}));
}

TEST_F(SharesTest, OneUsersRequestsBeginAsTheyCameAlsoWhereOneIsCancelled) {
  add(1, 1, 500);
  add(1, 1, 3);
  add(1, 2, 600);
  scheduler_.remove(RequestId{1});
  names_[0] = "cancelled";
  add(1, 1, 4);
  names_[3] = "later";
  EXPECT_EQ(begin_all(), (Order{"1.1", "later", "1.2"}));
}

}  // namespace
}  // namespace spillway
