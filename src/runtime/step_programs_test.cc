// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_programs.h"

#include <gtest/gtest.h>

#include <set>

namespace spillway {
namespace {

TEST(StepProgramsTest, OneNumberForEachCombination) {
  StepPrograms programs;
  constexpr KvGroupShape kKv{2, 1, 64, KvType::kF16};
  KvGroupShape other = kKv;
  other.type = KvType::kInt8;
  const StepArguments all[] = {{1, 2, kKv, 0, 0}, {1, 2, kKv, 0, 0.1F}, {1, 2, kKv, 3, 0},
                               {1, 3, kKv, 0, 0}, {2, 1, kKv, 0, 0},    {1, 2, other, 0, 0}};
  std::set<uint64_t> numbers = {0};
  for (const StepArguments& each : all)
    EXPECT_TRUE(numbers.insert(programs.number_of(each)).second);
  for (const StepArguments& each : all)
    EXPECT_FALSE(numbers.insert(programs.number_of(each)).second) << "known already";
}

TEST(StepProgramsTest, OfTwoDecodersNoneAreEqual) {
  StepPrograms one, other;
  EXPECT_NE(one.number_of({1, 2}), other.number_of({1, 2}));
}

TEST(StepProgramsTest, WhatWasForgottenGetsANewNumber) {
  StepPrograms programs;
  const uint64_t first = programs.number_of({1, 1}), second = programs.number_of({2, 2});
  std::set<uint64_t> numbers = {first, second};
  for (uint64_t i = 3; i <= StepPrograms::kMostKnown; ++i)
    numbers.insert(programs.number_of({i, i}));
  EXPECT_EQ(programs.number_of({1, 1}), first) << "there was room for all";
  numbers.insert(programs.number_of({100, 100}));  // the second is the least recently used
  EXPECT_EQ(numbers.size(), StepPrograms::kMostKnown + 1);
  EXPECT_EQ(programs.number_of({1, 1}), first);
  EXPECT_TRUE(numbers.insert(programs.number_of({2, 2})).second);
}

}  // namespace
}  // namespace spillway
