// SPDX-License-Identifier: Apache-2.0
#include "runtime/graph_keys.h"

#include <gtest/gtest.h>

#include <set>

namespace spillway {
namespace {

TEST(GraphKeysTest, OneNumberForEachCombination) {
  GraphKeys keys;
  constexpr KvGroupShape kKv{2, 1, 64, KvType::kF16};
  KvGroupShape other = kKv;
  other.type = KvType::kInt8;
  const StepArguments all[] = {{1, 2, kKv, 0, 0}, {1, 2, kKv, 0, 0.1F}, {1, 2, kKv, 3, 0},
                               {1, 3, kKv, 0, 0}, {2, 1, kKv, 0, 0},    {1, 2, other, 0, 0}};
  std::set<uint64_t> numbers = {0};
  for (const StepArguments& each : all) EXPECT_TRUE(numbers.insert(keys.number_of(each)).second);
  for (const StepArguments& each : all)
    EXPECT_FALSE(numbers.insert(keys.number_of(each)).second) << "known already";
}

TEST(GraphKeysTest, OfTwoDecodersNoneAreEqual) {
  GraphKeys one, other;
  EXPECT_NE(one.number_of({1, 2}), other.number_of({1, 2}));
}

TEST(GraphKeysTest, WhatWasForgottenGetsANewNumber) {
  GraphKeys keys;
  const uint64_t first = keys.number_of({1, 1}), second = keys.number_of({2, 2});
  std::set<uint64_t> numbers = {first, second};
  for (uint64_t i = 3; i <= GraphKeys::kMostKnown; ++i) numbers.insert(keys.number_of({i, i}));
  EXPECT_EQ(keys.number_of({1, 1}), first) << "there was room for all";
  numbers.insert(keys.number_of({100, 100}));  // the second is the least recently used
  EXPECT_EQ(numbers.size(), GraphKeys::kMostKnown + 1);
  EXPECT_EQ(keys.number_of({1, 1}), first);
  EXPECT_TRUE(numbers.insert(keys.number_of({2, 2})).second);
}

}  // namespace
}  // namespace spillway
