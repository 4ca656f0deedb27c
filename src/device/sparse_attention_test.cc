// SPDX-License-Identifier: Apache-2.0
#include "device/sparse_attention.h"

#include <gtest/gtest.h>

#include <vector>

namespace spillway {
namespace {

TEST(AttendedKeysTest, IsTheShareRoundedUpAndNeverNone) {
  EXPECT_EQ(attended_keys(0.1F, 1), 1);
  EXPECT_EQ(attended_keys(0.1F, 9), 1);
  EXPECT_EQ(attended_keys(0.1F, 10), 1);
  EXPECT_EQ(attended_keys(0.1F, 11), 2);
  EXPECT_EQ(attended_keys(0.1F, 1000), 100);
  EXPECT_EQ(attended_keys(0.1F, 1001), 101);
  EXPECT_EQ(attended_keys(0.25F, 4096), 1024);
  EXPECT_EQ(attended_keys(0.25F, 4097), 1025);
  EXPECT_EQ(attended_keys(1, 12345), 12345);
  EXPECT_EQ(attended_keys(0.999F, 100), 100);
  EXPECT_EQ(attended_keys(1e-30F, 100000), 1);
}

TEST(AttendedKeysTest, NeverExceedsTheKeysAndGrowsWithThem) {
  for (const float share : {0.01F, 0.1F, 0.3F, 0.7F, 0.99F}) {
    int64_t before = 1;
    for (int64_t keys = 1; keys < 3000; ++keys) {
      const int64_t k = attended_keys(share, keys);
      EXPECT_GE(k, before);
      EXPECT_LE(k, keys);
      EXPECT_LT(static_cast<double>(k), static_cast<double>(share) * static_cast<double>(keys) + 1);
      before = k;
    }
  }
}

TEST(AttentionTrafficTest, CountsEntriesOfDecodingRowsOnly) {
  const KvLayerView kv{KvType::kF16, 100, 2, 64, nullptr, nullptr};
  const std::vector<int32_t> table(63);  // 1,008 positions
  const SequenceSpan spans[] = {
      {0, 1, 999, table, {}, true}, {1, 7, 100, table}, {8, 1, 0, table, {}, true}};
  AttentionTraffic dense;
  dense.add(spans, kv, {.heads = 2}, 3);
  EXPECT_EQ(dense.dense_v_bytes, uint64_t{3 * 2 * 128} * (1000 + 1));
  EXPECT_EQ(dense.v_bytes, dense.dense_v_bytes);
  AttentionTraffic sparse;
  sparse.add(spans, kv, {.heads = 2, .top_k = 0.1F}, 3);
  EXPECT_EQ(sparse.dense_v_bytes, dense.dense_v_bytes);
  EXPECT_EQ(sparse.v_bytes, uint64_t{3 * 2 * 128} * (100 + 1));
}

// Each query head chooses its own keys, a window limits the choice, and a quantized entry is read
// with its scales.
TEST(AttentionTrafficTest, KnowsGroupsWindowsAndScales) {
  const std::vector<int32_t> table(63);
  const SequenceSpan span{0, 1, 999, table, {}, /*generates=*/true};
  const KvLayerView int4{KvType::kInt4, 100, 2, 64, nullptr, nullptr};
  AttentionTraffic traffic;
  traffic.add({&span, 1}, int4, {.heads = 6, .window = 105, .top_k = 0.1F}, 1);
  EXPECT_EQ(traffic.dense_v_bytes, uint64_t{2 * 36 * 105});
  EXPECT_EQ(traffic.v_bytes, uint64_t{6 * 36 * 11});
}

TEST(AttentionTrafficTest, OfAPartOfASequenceCountsThatPart) {
  const KvLayerView kv{KvType::kF16, 100, 2, 64, nullptr, nullptr};
  const std::vector<int32_t> table(16);
  const SequenceSpan part{0, 1, 999, table, {}, /*generates=*/true};
  AttentionTraffic traffic;
  traffic.add({&part, 1}, kv, {.heads = 2}, 1);
  EXPECT_EQ(traffic.dense_v_bytes, uint64_t{2 * 128} * 256);
}

}  // namespace
}  // namespace spillway
