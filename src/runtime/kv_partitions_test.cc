// SPDX-License-Identifier: Apache-2.0
#include "runtime/kv_partitions.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace spillway {
namespace {

// Describes the partitions of a sequence with these numbers of blocks in each tier, whose last
// `written` blocks get rows.
std::string cut(int32_t device, int32_t host, int32_t disk, int64_t written,
                const PartitionLimits& limits, double host_share = 0) {
  std::vector<BlockId> table = block_range(0, device);
  for (const BlockId block : block_range(0, host, Tier::kHost)) table.push_back(block);
  for (const BlockId block : block_range(0, disk, Tier::kDisk)) table.push_back(block);
  const int64_t from = static_cast<int64_t>(table.size()) - written;
  std::string text;
  int64_t next = 0;
  for (const KvPartition& part : partition_sequence(table, from, host_share, limits)) {
    EXPECT_EQ(part.begin, next);
    EXPECT_EQ(part.begin % kPartitionBlocks, 0);
    EXPECT_EQ(part.holds_rows, part.end == static_cast<int64_t>(table.size()));
    if (part.tier != Tier::kDevice && !part.stays) {
      EXPECT_LE(part.end - part.begin, limits.staging_blocks);
    }
    next = part.end;
    text += fmt::format("{}{}{}{}", text.empty() ? "" : " ", "ghd"[static_cast<int>(part.tier)],
                        part.stays ? "=" : "-", part.end);
  }
  EXPECT_EQ(next, static_cast<int64_t>(table.size()));
  return text;
}

TEST(KvPartitionsTest, CutsWhereMemoriesFollowEachOther) {
  const PartitionLimits limits{.staging_blocks = 64};
  EXPECT_EQ(cut(32, 20, 0, 1, limits), "g-32 h-52");
  EXPECT_EQ(cut(32, 16, 10, 3, limits), "g-32 h-48 d-58");
  EXPECT_EQ(cut(0, 48, 1, 1, limits), "h-48 d-49");
  EXPECT_EQ(cut(32, 100, 0, 1, limits, /*host_share=*/1), "g-32 h=132");
}

TEST(KvPartitionsTest, OfHostMemoryTheEndStaysThere) {
  const PartitionLimits limits{.staging_blocks = 40};
  EXPECT_EQ(cut(32, 100, 0, 1, limits, 0.5), "g-32 h-64 h-80 h=132");
  EXPECT_EQ(cut(0, 100, 0, 1, limits, 0.01), "h-32 h-64 h-96 h=100");
  EXPECT_EQ(cut(16, 64, 20, 3, limits, 0.25), "g-16 h-48 h-64 h=80 d-100");
}

TEST(KvPartitionsTest, PartsFindRoomInStagingWithTheirRows) {
  const PartitionLimits limits{.staging_blocks = 40};
  EXPECT_EQ(cut(0, 40, 0, 5, limits), "h-40");
  EXPECT_EQ(cut(0, 41, 0, 1, limits), "h-16 h-41");
  EXPECT_EQ(cut(0, 128, 0, 1, limits), "h-32 h-64 h-96 h-128");
  EXPECT_EQ(cut(16, 0, 0, 4, limits), "g-16");
  EXPECT_EQ(cut(16, 96, 16, 8, limits, 1), "g-16 h=112 d-128");
  for (int32_t blocks = 1; blocks <= 128; ++blocks) {
    const int64_t most = most_staged_rows(limits) / kKvBlockTokens;
    for (int64_t written = 1; written <= std::min<int64_t>(blocks, most); ++written) {
      cut(0, blocks, 0, written, limits);
      cut(32, blocks, 0, written, limits);
      cut(16, 32, blocks, written, limits);
      cut(16, blocks, 0, written, limits, 0.3);
    }
  }
}

TEST(KvPartitionsTest, FixedPartsDoNotDependOnWhereBlocksAre) {
  const PartitionLimits limits{.staging_blocks = 40, .fixed_blocks = 32};
  EXPECT_EQ(cut(100, 0, 0, 1, limits), "g-32 g-64 g-96 g-100");
  EXPECT_EQ(cut(64, 36, 0, 1, limits), "g-32 g-64 h-96 h-100");
  EXPECT_EQ(cut(0, 64, 36, 1, limits), "h-32 h-64 d-96 d-100");
}

TEST(KvPartitionsTest, SmallStagingHoldsNoParts) {
  EXPECT_EQ(most_staged_rows({.staging_blocks = 0}), 0);
  EXPECT_EQ(most_staged_rows({.staging_blocks = 32}), 0);
  EXPECT_EQ(most_staged_rows({.staging_blocks = 33}), 16 * kKvBlockTokens);
  EXPECT_EQ(most_staged_rows({.staging_blocks = 40, .fixed_blocks = 64}), 0);
}

}  // namespace
}  // namespace spillway
