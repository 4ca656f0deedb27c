// SPDX-License-Identifier: Apache-2.0
#include "engine/what_helps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spillway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Weights of 100 MiB, or 30 compressed, and KV of 1 MiB a token and sequence in F32; what does not
// fit in memory may be on disk.
bool fits(const FitTrial& trial) {
  const uint64_t weights = (trial.compress ? 30 : 100) * kMiB;
  const KvType type = trial.size.kv_type;
  const int halvings = type == KvType::kF32 ? 0 : is_half(type) ? 1 : type == KvType::kInt8 ? 2 : 3;
  const uint64_t kv =
      static_cast<uint64_t>(trial.size.tokens * trial.size.sequences) * kMiB >> halvings;
  if (trial.kv && trial.kv->disk > 0)
    return weights <= trial.budgets.host && kv <= trial.budgets.disk;
  return weights + kv <= trial.budgets.host + trial.budgets.disk;
}

FitTrial trial(int64_t tokens, KvType type, uint64_t host_mib) {
  FitTrial t;
  t.size.tokens = tokens;
  t.size.kv_type = type;
  t.budgets.host = host_mib * kMiB;
  return t;
}

TEST(WhatHelpsTest, NamesWhatSufficesWithTheValueThatDoes) {
  const std::string text =
      what_helps(trial(200, KvType::kF32, 160),
                 {.shortest_tokens = 10, .compressible = true, .host_bytes = 1000 * kMiB}, fits);
  EXPECT_EQ(text, "one of these makes it fit: --ctx 60, --kv-type int8, --host-memory 300MiB");
}

TEST(WhatHelpsTest, AnotherTypeOfTheSameSizeDoesNotHelp) {
  EXPECT_EQ(what_helps(trial(200, KvType::kBf16, 160), {}, fits), "--kv-type int8 makes it fit");
}

TEST(WhatHelpsTest, LeavesOutWhatIsAlreadySoOrNotEnough) {
  // 200 tokens of int4 are 25 MiB: none of it can shrink any more.
  const FitTrial small = trial(200, KvType::kInt4, 90);
  const std::string text = what_helps(
      small, {.shortest_tokens = 200, .compressible = true, .host_bytes = 100 * kMiB}, fits);
  EXPECT_EQ(text, "--compress-weights makes it fit");
  EXPECT_EQ(what_helps(small, {.host_bytes = 500 * kMiB}, fits),
            "--host-memory 125MiB makes it fit");
  EXPECT_THAT(what_helps(small, {.shortest_tokens = 1}, fits), HasSubstr("no option by itself"));
}

TEST(WhatHelpsTest, MemoryThatOthersHaveIsPartOfTheOption) {
  FitTrial beside = trial(200, KvType::kInt4, 90);
  beside.budgets.host_taken = 10 * kMiB - 1;
  EXPECT_EQ(what_helps(beside, {.host_bytes = 500 * kMiB}, fits),
            "--host-memory 135MiB makes it fit");
  EXPECT_THAT(what_helps(beside, {.host_bytes = 134 * kMiB}, fits),
              HasSubstr("no option by itself"));
}

TEST(WhatHelpsTest, TheDiskAndFewerSequencesHelpWhereTheyCan) {
  FitTrial many = trial(50, KvType::kF32, 220);
  many.size.sequences = 8;
  const FitLimits limits{.sequences_option = "--batch", .disk_bytes = 4096 * kMiB};
  EXPECT_THAT(what_helps(many, limits, fits), HasSubstr("--batch 2"));
  EXPECT_THAT(what_helps(many, limits, fits), HasSubstr("--kv 0,0,100 with --disk-memory 400MiB"));
  EXPECT_THAT(what_helps(many, limits, fits), Not(HasSubstr("--ctx")));
  EXPECT_THAT(what_helps(many, limits, fits), Not(HasSubstr("--host-memory")));
}

}  // namespace
}  // namespace spillway
