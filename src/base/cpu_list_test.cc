// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace spillway {
namespace {

using testing::ElementsAre;
using testing::Optional;

TEST(CpuListTest, ReadsNumbersAndRanges) {
  EXPECT_THAT(try_parse_cpu_list("0"), Optional(ElementsAre(0)));
  EXPECT_THAT(try_parse_cpu_list("0-3,8\n"), Optional(ElementsAre(0, 1, 2, 3, 8)));
  EXPECT_THAT(try_parse_cpu_list("5-5"), Optional(ElementsAre(5)));
  EXPECT_THAT(try_parse_cpu_list("8191"), Optional(ElementsAre(8191)));
  EXPECT_THAT(try_parse_cpu_list(""), Optional(ElementsAre()));
  EXPECT_THAT(try_parse_cpu_list("\n"), Optional(ElementsAre()));
}

TEST(CpuListTest, KeepsTheOrderAndDropsRepetitions) {
  EXPECT_THAT(try_parse_cpu_list("7,2-4,3,7"), Optional(ElementsAre(7, 2, 3, 4)));
}

TEST(CpuListTest, RefusesEverythingElse) {
  for (const char* text : {"x", "-1", "1-", "-", "3-1", "1,", ",1", "1,,2", "1 2", " 1", "1-2-3",
                           "8192", "0-8192", "99999999999999999999", "0x3", "1\n\n", "+1"}) {
    EXPECT_EQ(try_parse_cpu_list(text), std::nullopt) << text;
  }
}

TEST(CpuListTest, AThreadCanBeRestrictedToOneOfItsProcessors) {
  const std::vector<int> allowed = allowed_cpus();
  ASSERT_FALSE(allowed.empty());
  std::thread([&] {
    EXPECT_TRUE(try_restrict_this_thread({&allowed.back(), 1}));
    EXPECT_THAT(allowed_cpus(), ElementsAre(allowed.back()));
  }).join();
  EXPECT_EQ(allowed_cpus(), allowed);
}

TEST(CpuListTest, ProcessorsThatDoNotExistAreRefused) {
  const int none = kMaxCpus - 1, negative = -1;
  EXPECT_FALSE(try_restrict_this_thread({&none, 1}));
  EXPECT_FALSE(try_restrict_this_thread({&negative, 1}));
  EXPECT_FALSE(try_restrict_this_thread({}));
}

}  // namespace
}  // namespace spillway
