// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_programs.h"

#include <gtest/gtest.h>

#include <set>

namespace spillway {
namespace {

TEST(StepProgramsTest, OneNumberForEachCombination) {
  StepPrograms programs;
  const StepArguments all[] = {{1, 2, 3, 0}, {1, 2, 3, 0.1F}, {1, 2, 4, 0}, {1, 3, 3, 0},
                               {2, 2, 3, 0}, {2, 1, 3, 0},    {3, 2, 1, 0}};
  std::set<uint64_t> numbers = {0};
  for (const StepArguments& each : all)
    EXPECT_TRUE(numbers.insert(programs.number_of(each)).second);
  for (const StepArguments& each : all)
    EXPECT_FALSE(numbers.insert(programs.number_of(each)).second) << "known already";
}

TEST(StepProgramsTest, OfTwoDecodersNoneAreEqual) {
  StepPrograms one, other;
  EXPECT_NE(one.number_of({1, 2, 3, 0}), other.number_of({1, 2, 3, 0}));
}

TEST(StepProgramsTest, WhatWasForgottenGetsANewNumber) {
  StepPrograms programs;
  const uint64_t first = programs.number_of({1, 1, 1, 0}),
                 second = programs.number_of({2, 2, 2, 0});
  std::set<uint64_t> numbers = {first, second};
  for (uint64_t i = 3; i <= StepPrograms::kMostKnown; ++i)
    numbers.insert(programs.number_of({i, i, i, 0}));
  EXPECT_EQ(programs.number_of({1, 1, 1, 0}), first) << "there was room for all";
  numbers.insert(programs.number_of({100, 100, 100, 0}));  // the second was used longest ago
  EXPECT_EQ(numbers.size(), StepPrograms::kMostKnown + 1);
  EXPECT_EQ(programs.number_of({1, 1, 1, 0}), first);
  EXPECT_TRUE(numbers.insert(programs.number_of({2, 2, 2, 0})).second);
}

}  // namespace
}  // namespace spillway
