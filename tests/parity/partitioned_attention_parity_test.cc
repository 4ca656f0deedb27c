// SPDX-License-Identifier: Apache-2.0
// Tests that attention over KV partitions gives in total what attention to the whole KV gives.
#include "tests/parity/attention_step.h"
#include "tests/parity/parity_device.h"

namespace spillway::parity {
namespace {

using Case = AttentionCase;
using Lengths = std::vector<std::pair<int32_t, int32_t>>;
using Cuts = std::vector<int32_t>;

class PartitionedAttentionParityTest : public ParityTest {
 protected:
  void check(const Case& c, const Lengths& lengths, const Cuts& cuts) {
    SCOPED_TRACE(describe(c, lengths) << ", " << cuts.size() << " cuts");
    AttentionStep step(device_, c, lengths);
    EXPECT_LE(nmse(step.run_in_parts(cuts), step.expected()), bar_of(c));
  }
};

TEST_P(PartitionedAttentionParityTest, OneRowMatchesDoublePrecisionWhereverItIsCut) {
  for (const KvType type : kAllKvTypes) {
    for (const Cuts& cuts : {Cuts{}, {256}, {768}, {256, 512}, {512, 768, 1024}}) {
      check({.type = type}, {{1100, 1}}, cuts);
      check({.heads = 8, .kv_heads = 1, .head_dim = 128, .type = type}, {{1024, 1}}, cuts);
    }
    check({.heads = 3, .kv_heads = 3, .head_dim = 24, .type = type}, {{256, 1}}, {256});
    check({.heads = 4, .kv_heads = 4, .head_dim = 256, .type = type}, {{700, 1}}, {512});
  }
}

TEST_P(PartitionedAttentionParityTest, PromptsMatchDoublePrecisionWhereverTheyAreCut) {
  for (const KvType type : kAllKvTypes) {
    for (const int head_dim : {64, 80, 128}) {
      const Case c{.heads = 4, .kv_heads = 2, .head_dim = head_dim, .type = type};
      check(c, {{256, 40}}, {256});
      check(c, {{600, 150}}, {256, 512});
      check(c, {{1030, 33}}, {768});
    }
    check({.heads = 8, .kv_heads = 1, .head_dim = 40, .type = type}, {{512, 200}}, {256});
  }
}

// Positions are hidden by their distance, so a partition may be hidden entirely, or for some rows.
TEST_P(PartitionedAttentionParityTest, WindowHidesTheSameInAnyPartition) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    for (const int window : {1, 40, 256, 300, 600}) {
      const Case c{.window = window, .type = type};
      check(c, {{900, 1}}, {256, 512, 768});
      check(c, {{520, 300}}, {256, 512});
      check(c, {{1024, 20}, {600, 1}}, {256, 512, 1024});
    }
  }
}

TEST_P(PartitionedAttentionParityTest, SequencesOfAStepHaveTheirOwnPartitions) {
  for (const KvType type : kAllKvTypes) {
    const Lengths lengths = {{0, 50}, {300, 1}, {800, 20}, {17, 1}, {512, 1}, {700, 2}, {256, 64}};
    check({.heads = 9, .kv_heads = 3, .type = type}, lengths, {256, 512});
    check({.heads = 2, .kv_heads = 2, .head_dim = 128, .type = type}, lengths, {512});
  }
}

TEST_P(PartitionedAttentionParityTest, LargeScoresStayFinite) {
  check({.type = KvType::kF32, .deviation = 30}, {{600, 20}}, {256, 512});
  check({.type = KvType::kF32, .deviation = 1e6F}, {{600, 1}}, {256, 512});
  check({.type = KvType::kF16, .deviation = 4}, {{600, 1}, {300, 40}}, {256, 512});
}

TEST_P(PartitionedAttentionParityTest, HalfPrecisionRowsKeepFullSums) {
  if (!device_.kind().half_activations) GTEST_SKIP() << kFloatActivationsOnly;
  for (const DType rows : {DType::kF16, DType::kBF16}) {
    for (const KvType type : {KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
      for (const int head_dim : {64, 96, 128}) {
        const Case c{.heads = 8, .kv_heads = 2, .head_dim = head_dim, .type = type, .rows = rows};
        check(c, {{1100, 1}}, {256, 1024});
        check(c, {{600, 200}, {900, 1}}, {256, 512});
      }
    }
  }
}

// A NaN in one partition is not lost among the others.
TEST_P(PartitionedAttentionParityTest, WhatIsNotANumberStaysSo) {
  constexpr int32_t kOld = 620;
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    for (const int32_t position : {3, 300, 610}) {
      for (const int32_t rows : {1, 40}) {
        const auto spoil = [&](std::vector<float>&, std::vector<AttentionStep::Sequence>& all) {
          const auto width = all[0].k.size() / static_cast<size_t>(kOld + rows);
          all[0].k[static_cast<size_t>(position) * width] = NAN;  // of the first kv head
        };
        AttentionStep step(device_, {.type = type}, {{kOld, rows}}, spoil);
        const std::vector<float> result = step.run_in_parts({256, 512});
        const auto row = static_cast<size_t>(step.q_width());
        for (size_t i = 0; i < result.size(); i += row)
          EXPECT_TRUE(std::isnan(result[i])) << kv_type_name(type) << " at " << position;
        for (size_t i = row / 2; i < result.size(); i += row)
          EXPECT_TRUE(std::isfinite(result[i])) << kv_type_name(type) << " at " << position;
      }
    }
  }
}

// With the same partitions of its sequence a row has the same bits in any chunk, alone and among
// others, as --deterministic promises.
TEST_P(PartitionedAttentionParityTest, TheSameCutsGiveTheSameBitsInAnyChunk) {
  device_.ops().set_deterministic(true);
  const Cuts cuts = {256, 512};
  for (const KvType type : kAllKvTypes) {
    SCOPED_TRACE(kv_type_name(type));
    const Case c{.type = type};
    std::vector<float> queries;
    const auto keep = [&](std::vector<float>& q, std::vector<AttentionStep::Sequence>&) {
      queries = q;
    };
    AttentionStep chunk(device_, c, {{600, 30}}, keep);
    const std::vector<float> rows = chunk.run_one_after_another(cuts);
    AttentionStep among(device_, c, {{600, 30}, {1000, 1}, {40, 7}});
    std::vector<float> first = among.run_one_after_another(cuts);
    first.resize(rows.size());
    EXPECT_TRUE(same_bits(first, rows)) << "among others";
    const auto width = static_cast<size_t>(chunk.q_width());
    AttentionStep alone(device_, c, {{629, 1}},
                        [&](std::vector<float>& q, std::vector<AttentionStep::Sequence>&) {
                          q.assign(queries.end() - static_cast<ptrdiff_t>(width), queries.end());
                        });
    EXPECT_TRUE(same_bits(alone.run_one_after_another(cuts),
                          {rows.end() - static_cast<ptrdiff_t>(width), rows.end()}))
        << "alone";
  }
}

// On a CPU each partition continues where the previous one has ended, so partitions change no bit.
TEST_P(PartitionedAttentionParityTest, PartsHaveTheBitsOfTheWholeOnACpu) {
  if (!device_.device().host_visible()) GTEST_SKIP() << "each part is added up by itself";
  device_.ops().set_deterministic(true);
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8}) {
    for (const int window : {0, 300}) {
      AttentionStep step(device_, {.window = window, .type = type}, {{1100, 1}, {600, 30}});
      const std::vector<float> whole = step.run();
      for (const Cuts& cuts : {Cuts{256}, {512}, {256, 512}, {256, 512, 768, 1024}}) {
        EXPECT_TRUE(same_bits(step.run_one_after_another(cuts), whole))
            << kv_type_name(type) << ", window " << window << ", " << cuts.size() << " cuts";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PartitionedAttentionParityTest, testing::ValuesIn(device_kinds()),
                         kind_name);

}  // namespace
}  // namespace spillway::parity
