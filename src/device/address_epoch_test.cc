// SPDX-License-Identifier: Apache-2.0
#include "device/address_epoch.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace spillway {
namespace {

TEST(AddressEpochTest, NoTwoOwnersHaveTheSame) {
  std::set<uint64_t> seen = {0};
  for (int i = 0; i < 100; ++i) {
    AddressEpoch one;
    EXPECT_TRUE(seen.insert(one.number()).second);
    one.renew();
    EXPECT_TRUE(seen.insert(one.number()).second);
  }
}

TEST(AddressEpochTest, GoesWithTheMemory) {
  AddressEpoch from;
  const uint64_t number = from.number();
  AddressEpoch to(std::move(from));
  EXPECT_EQ(to.number(), number);
  EXPECT_NE(from.number(), number);  // NOLINT(bugprone-use-after-move): it owns nothing now
  AddressEpoch other;
  const uint64_t before = other.number();
  other = std::move(to);
  EXPECT_EQ(other.number(), number);
  EXPECT_NE(to.number(), number);  // NOLINT(bugprone-use-after-move)
  EXPECT_NE(to.number(), before);
}

TEST(AddressEpochTest, ThreadsNeverGetTheSame) {
  constexpr size_t kThreads = 4, kEach = 1000;
  std::vector<std::vector<uint64_t>> numbers(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : numbers) {
    threads.emplace_back([&mine] {
      for (size_t i = 0; i < kEach; ++i) mine.push_back(AddressEpoch::fresh());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> all;
  for (const auto& mine : numbers) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), kThreads * kEach);
}

}  // namespace
}  // namespace spillway
