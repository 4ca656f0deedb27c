// SPDX-License-Identifier: Apache-2.0
#include "kv/eviction_order.h"

#include <gtest/gtest.h>

#include <vector>

namespace spillway {
namespace {

BlockKey key(uint64_t n) { return {n, n}; }

std::vector<uint64_t> evict_all(EvictionOrder& order) {
  std::vector<uint64_t> went;
  while (const auto next = order.try_next([](const BlockKey&) { return true; })) {
    order.evicted(*next);
    went.push_back(next->low);
  }
  EXPECT_EQ(order.size(), 0U);
  return went;
}

TEST(EvictionOrderTest, TheCheapestGoesAndOfEqualsTheOldest) {
  EvictionOrder order;
  order.add(key(1), key(100), 5);
  order.add(key(2), key(200), 1);
  order.add(key(3), key(300), 1);
  order.add(key(4), key(400), 3);
  EXPECT_EQ(evict_all(order), (std::vector<uint64_t>{2, 3, 4, 1}));
}

TEST(EvictionOrderTest, NoneGoesBeforeThoseThatGoOnFromIt) {
  EvictionOrder order;
  order.add(key(1), key(0), 1);
  order.add(key(2), key(1), 2);
  order.add(key(3), key(2), 3);
  order.add(key(12), key(1), 9);
  EXPECT_EQ(evict_all(order), (std::vector<uint64_t>{3, 2, 12, 1}));
}

TEST(EvictionOrderTest, AParentThatComesLaterWaitsForItsChildren) {
  EvictionOrder order;
  order.add(key(2), key(1), 5);
  order.add(key(1), key(0), 1);
  EXPECT_EQ(evict_all(order), (std::vector<uint64_t>{2, 1}));
}

TEST(EvictionOrderTest, WhatIsExpensiveAndNeverUsedGoesInTheEnd) {
  EvictionOrder order;
  order.add(key(1), key(0), 10);
  uint64_t next = 100;
  // Cheap blocks come and go; each eviction raises the floor of the priorities.
  for (int n = 0; n < 30 && order.size() > 0; ++n) {
    order.add(key(next), key(next + 1000), 1);
    ++next;
    const auto victim = order.try_next([](const BlockKey&) { return true; });
    if (*victim == key(1)) return;
    order.evicted(*victim);
  }
  FAIL() << "it stays for ever";
}

TEST(EvictionOrderTest, WhatIsUsedStaysLongerThanWhatIsNot) {
  EvictionOrder order;
  for (uint64_t n = 1; n <= 3; ++n) order.add(key(n), key(100 * n), 1);
  order.evicted(key(3));
  order.use(key(1));
  order.use(key(77));  // an unknown key
  EXPECT_EQ(evict_all(order), (std::vector<uint64_t>{2, 1}));
}

TEST(EvictionOrderTest, PassesOverThoseThatMayNotGo) {
  EvictionOrder order;
  order.add(key(1), key(0), 1);
  order.add(key(2), key(9), 2);
  EXPECT_EQ(order.try_next([](const BlockKey& of) { return of != key(1); }), key(2));
  EXPECT_EQ(order.try_next([](const BlockKey&) { return false; }), std::nullopt);
}

}  // namespace
}  // namespace spillway
