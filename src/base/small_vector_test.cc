// SPDX-License-Identifier: Apache-2.0
#include "base/small_vector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spillway {
namespace {

using testing::ElementsAre;

TEST(SmallVectorTest, HoldsAnyNumber) {
  SmallVector<int, 3> some{1, 2, 3};
  const int* const inside = some.data();
  EXPECT_THAT(some, ElementsAre(1, 2, 3));
  some.push_back(4);
  EXPECT_NE(some.data(), inside);
  some.push_back(5);
  EXPECT_THAT(some, ElementsAre(1, 2, 3, 4, 5));
  SmallVector<int, 3> copy = some;
  copy[0] = 7;
  EXPECT_THAT(some, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_FALSE(copy == some);
  copy[0] = 1;
  EXPECT_TRUE(copy == some);
}

TEST(SmallVectorTest, IsEmptyOnceCleared) {
  for (const size_t count : {0, 2, 3, 7}) {
    SmallVector<int, 3> values;
    values.resize(count);
    values.clear();
    EXPECT_TRUE(values.empty());
    values.push_back(5);
    EXPECT_EQ(values, (SmallVector<int, 3>{5}));
  }
}

TEST(SmallVectorTest, ShrinksBackAndGrowsAgain) {
  SmallVector<int, 2> some;
  some.resize(4);
  EXPECT_THAT(some, ElementsAre(0, 0, 0, 0));
  some[0] = 1;
  some[1] = 2;
  some[2] = 3;
  some.resize(3);
  EXPECT_THAT(some, ElementsAre(1, 2, 3));
  some.resize(1);
  EXPECT_THAT(some, ElementsAre(1));
  some.push_back(5);
  some.push_back(6);
  EXPECT_THAT(some, ElementsAre(1, 5, 6));
  some.resize(0);
  EXPECT_TRUE(some.empty());
}

}  // namespace
}  // namespace spillway
