// SPDX-License-Identifier: Apache-2.0
#include "plan/fit_suggestions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spillway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A run with weights of 100 MiB, or 30 MiB compressed, and F32 KV of 1 MiB per token and sequence.
// Data that does not fit in memory may be on disk.
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

TEST(FitSuggestionsTest, NamesWhatSufficesWithTheValueThatDoes) {
  const std::string text = fit_suggestions(
      trial(200, KvType::kF32, 160),
      {.shortest_tokens = 10, .compressible = true, .host_bytes = 1000 * kMiB}, fits);
  EXPECT_EQ(text, "one of these makes it fit: --ctx 60, --kv-type int8, --host-memory 300MiB");
}

TEST(FitSuggestionsTest, AnotherTypeOfTheSameSizeDoesNotHelp) {
  EXPECT_EQ(fit_suggestions(trial(200, KvType::kBf16, 160), {}, fits),
            "--kv-type int8 makes it fit");
}

TEST(FitSuggestionsTest, LeavesOutWhatIsAlreadySoOrNotEnough) {
  // 200 tokens of int4 KV are 25 MiB, and nothing can shrink further.
  const FitTrial small = trial(200, KvType::kInt4, 90);
  const std::string text = fit_suggestions(
      small, {.shortest_tokens = 200, .compressible = true, .host_bytes = 100 * kMiB}, fits);
  EXPECT_EQ(text, "--compress-weights makes it fit");
  EXPECT_EQ(fit_suggestions(small, {.host_bytes = 500 * kMiB}, fits),
            "--host-memory 125MiB makes it fit");
  EXPECT_THAT(fit_suggestions(small, {.shortest_tokens = 1}, fits),
              HasSubstr("no option by itself"));
}

TEST(FitSuggestionsTest, MemoryThatOthersHaveIsPartOfTheOption) {
  FitTrial beside = trial(200, KvType::kInt4, 90);
  beside.budgets.host_taken = 10 * kMiB - 1;
  EXPECT_EQ(fit_suggestions(beside, {.host_bytes = 500 * kMiB}, fits),
            "--host-memory 135MiB makes it fit");
  EXPECT_THAT(fit_suggestions(beside, {.host_bytes = 134 * kMiB}, fits),
              HasSubstr("no option by itself"));
}

TEST(FitSuggestionsTest, TheDiskAndFewerSequencesHelpWhereTheyCan) {
  FitTrial many = trial(50, KvType::kF32, 220);
  many.size.sequences = 8;
  const FitLimits limits{.sequences_option = "--batch", .disk_bytes = 4096 * kMiB};
  EXPECT_THAT(fit_suggestions(many, limits, fits), HasSubstr("--batch 2"));
  EXPECT_THAT(fit_suggestions(many, limits, fits),
              HasSubstr("--kv 0,0,100 with --disk-memory 400MiB"));
  EXPECT_THAT(fit_suggestions(many, limits, fits), Not(HasSubstr("--ctx")));
  EXPECT_THAT(fit_suggestions(many, limits, fits), Not(HasSubstr("--host-memory")));
}

TEST(FitSuggestionsTest, LargeBudgetsAreNamedInGiB) {
  const FitTrial small = trial(20000, KvType::kF32, 90);
  EXPECT_EQ(fit_suggestions(small, {.disk_bytes = 100 * 1024 * kMiB}, fits),
            "--disk-memory 19.6GiB makes it fit");
}

// 40 MiB of disk are enough, and with 100 MiB or more the run is four times as fast.
TEST(FitSuggestionsTest, NamesTheSmallestThatWorksAndWhatPays) {
  const FitTrial small = trial(200, KvType::kInt4, 85);
  const auto speed = [](const FitTrial& other) {
    return other.budgets.disk >= 100 * kMiB ? 4.0 : other.budgets.disk >= 40 * kMiB ? 1.0 : 0.0;
  };
  const FitLimits limits{.disk_bytes = 1000 * kMiB};
  EXPECT_EQ(fit_suggestions(small, limits, fits, {.quick = speed, .planned = speed}),
            "--disk-memory 40MiB (estimated 1 tokens/s; 160MiB give 4) makes it fit");
  const auto even = [](const FitTrial&) { return 2.0; };
  EXPECT_EQ(fit_suggestions(small, limits, fits, {.quick = speed, .planned = even}),
            "--disk-memory 40MiB makes it fit")
      << "the planner does as well with less";
}

TEST(FitSuggestionsTest, SaysWhereAMachineHasLess) {
  const FitTrial small = trial(200, KvType::kInt4, 90);
  FitLimits limits{.host_bytes = 500 * kMiB, .machine = "t4"};
  limits.present.host = 100 * kMiB;
  EXPECT_EQ(fit_suggestions(small, limits, fits),
            "--host-memory 125MiB (t4 has 100 MiB) makes it fit");
}

}  // namespace
}  // namespace spillway
