// SPDX-License-Identifier: Apache-2.0
#include "base/core_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

namespace spillway {
namespace {

constexpr double kWindow = 0.02;

// Returns how long `active` workers wait for a processor in one interval on a machine with
// `processors`, which `others` other threads want to use all the time.
double waited(int active, int others, int processors) {
  const int all = active + others;
  return all <= processors ? 0 : kWindow * active * (all - processors) / all;
}

// Says whether the kernel reports how long processors were idle.
enum class Idle { kKnown, kUnknown };

// Runs `windows` intervals and returns how many of them ran with `active` workers.
int count_with(CoreBudget& budget, int active, int windows, int others, int processors,
               Idle idle = Idle::kKnown) {
  int count = 0;
  for (int i = 0; i < windows; ++i) {
    const int now = budget.active();
    if (now == active) ++count;
    std::optional<double> idle_s;
    if (idle == Idle::kKnown) idle_s = kWindow * std::max(0, processors - now - others);
    budget.add_window(kWindow, waited(now, others, processors), idle_s);
  }
  return count;
}

TEST(CoreBudgetTest, UsesAllWorkersWhereNoOtherProcessRuns) {
  CoreBudget budget(16);
  EXPECT_EQ(count_with(budget, 16, 1000, 0, 16), 1000);
}

TEST(CoreBudgetTest, AShortDisturbanceChangesNothing) {
  CoreBudget budget(2);
  for (int i = 0; i < 100; ++i) {
    budget.add_window(kWindow, i % 2 == 0 ? kWindow : 0, 0);
    EXPECT_EQ(budget.active(), 2);
  }
}

TEST(CoreBudgetTest, SomethingSmallBesideItChangesNothing) {
  CoreBudget budget(2);
  for (int i = 0; i < 100; ++i) budget.add_window(kWindow, 0.1 * kWindow, 0);
  EXPECT_EQ(budget.active(), 2);
}

TEST(CoreBudgetTest, LeavesAProcessorThatIsTakenForLong) {
  for (const int others : {1, 2, 4}) {
    CoreBudget budget(2);
    EXPECT_LE(count_with(budget, 2, 10, others, 2), 2);
    EXPECT_EQ(count_with(budget, 1, 2000, others, 2), 2000);
  }
}

TEST(CoreBudgetTest, SeldomTriesWhereItIsUnknownWhetherAProcessorIsIdle) {
  for (const int others : {1, 2, 4}) {
    CoreBudget budget(2);
    EXPECT_GE(count_with(budget, 1, 2000, others, 2, Idle::kUnknown), 1950);
  }
}

TEST(CoreBudgetTest, OfManyProcessorsItLeavesAsManyAsAreTaken) {
  for (const Idle idle : {Idle::kKnown, Idle::kUnknown}) {
    CoreBudget budget(16);
    count_with(budget, 16, 50, 4, 16, idle);
    EXPECT_GE(count_with(budget, 12, 1000, 4, 16, idle), 900);
  }
}

TEST(CoreBudgetTest, ComesBackWhenTheOthersHaveGone) {
  for (const Idle idle : {Idle::kKnown, Idle::kUnknown}) {
    CoreBudget budget(16);
    count_with(budget, 16, 1000, 12, 16, idle);
    EXPECT_LE(budget.active(), 6);
    EXPECT_GE(count_with(budget, 16, 300, 0, 16, idle), 150);  // six seconds
  }
}

TEST(CoreBudgetTest, OneWorkerIsAlwaysLeft) {
  CoreBudget budget(1);
  for (int i = 0; i < 10; ++i) budget.add_window(kWindow, kWindow, 0);
  EXPECT_EQ(budget.active(), 1);
}

}  // namespace
}  // namespace spillway
