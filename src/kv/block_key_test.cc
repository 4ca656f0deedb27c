// SPDX-License-Identifier: Apache-2.0
#include "kv/block_key.h"

#include <gtest/gtest.h>

#include <vector>

namespace spillway {
namespace {

// The folders of --kv-dir outlive the program and find their blocks by these keys, so they
// must not change.
TEST(BlockKeyTest, StaysWhatItIs) {
  const BlockKey first = first_key("salt");
  EXPECT_EQ(first, (BlockKey{0x5f3cdedcf95b9c49, 0x5bf5404267006eb6}));
  EXPECT_EQ(next_key(first, std::vector<int32_t>{1, 2, 3}),
            (BlockKey{0xe9dd3a01765af8a9, 0x489f2ccc0f53e54e}));
  EXPECT_EQ(salted_key(first, "a"), (BlockKey{0x216052f6c6f491fa, 0xcbe265e719f1aa9a}));
}

TEST(BlockKeyTest, SaltsPartChains) {
  const BlockKey first = first_key("salt");
  const std::vector<int32_t> tokens = {7, 8, 9};
  EXPECT_NE(salted_key(first, "a"), first);
  EXPECT_NE(salted_key(first, "a"), salted_key(first, "b"));
  EXPECT_NE(salted_key(first, "a"), salted_key(first_key("other"), "a"));
  EXPECT_NE(next_key(salted_key(first, "a"), tokens), next_key(first, tokens));
}

TEST(BlockKeyTest, GroupsPartKeysButForTheFirst) {
  const BlockKey first = first_key("salt");
  EXPECT_EQ(group_key(first, 0), first) << "folders of models with one group stay readable";
  EXPECT_EQ(group_key(first, 1), (BlockKey{0x78ddab44a1508527, 0x439672e34a1e7a2c}));
  EXPECT_NE(group_key(first, 1), group_key(first, 2));
  EXPECT_NE(group_key(first, 1), group_key(salted_key(first, "a"), 1));
}

}  // namespace
}  // namespace spillway
