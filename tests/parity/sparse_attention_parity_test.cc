// SPDX-License-Identifier: Apache-2.0
// Tests attention to the largest scores only (FlexGen, section 5), on every device.
//
// If the last score that takes part and the first that does not are closer than the arithmetic is
// precise, either choice is right: such heads are left out, and there are few.
#include "tests/parity/attention_step.h"
#include "tests/parity/parity_device.h"

namespace spillway::parity {
namespace {

using Case = AttentionCase;
using Lengths = std::vector<std::pair<int32_t, int32_t>>;

class SparseAttentionParityTest : public ParityTest {
 protected:
  // `precision` is the precision of scores.
  void check(const Case& c, const Lengths& lengths, double precision = 1e-5) {
    SCOPED_TRACE(describe(c, lengths));
    AttentionStep step(device_, c, lengths);
    const std::vector<float> actual = step.run();
    Doubles gaps;
    const Doubles expected = step.expected(&gaps);
    ASSERT_EQ(actual.size(), expected.size());
    // Only sequences of one row have gaps, in this order.
    std::vector<float> sure_actual;
    Doubles sure_expected;
    size_t head = 0, next_gap = 0;
    const auto dim = static_cast<size_t>(c.head_dim);
    for (const auto& sequence : step.sequences()) {
      for (int32_t i = 0; i < sequence.rows * c.heads; ++i, ++head) {
        const bool sure = sequence.rows > 1 || gaps.at(next_gap) > precision;
        next_gap += sequence.rows == 1 ? 1 : 0;
        ++heads_;
        sure_heads_ += sure ? 1 : 0;
        if (!sure) continue;
        const auto from = static_cast<int64_t>(head * dim),
                   to = static_cast<int64_t>(from + c.head_dim);
        sure_actual.insert(sure_actual.end(), actual.begin() + from, actual.begin() + to);
        sure_expected.insert(sure_expected.end(), expected.begin() + from, expected.begin() + to);
      }
    }
    EXPECT_EQ(next_gap, gaps.size());
    EXPECT_LE(nmse(sure_actual, sure_expected), bar_of(c));
  }
  void check_groups(KvType type, const std::vector<int>& head_dims) {
    for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {9, 3}, {8, 1}, {20, 2}, {32, 1}}) {
      for (const int head_dim : head_dims) {
        check({.heads = heads,
               .kv_heads = kv_heads,
               .head_dim = head_dim,
               .type = type,
               .top_k = 0.1F},
              {{300, 1}});
      }
    }
  }
  void TearDown() override { EXPECT_GE(sure_heads_ * 20, heads_ * 19) << "too few heads compared"; }

  int64_t heads_ = 0, sure_heads_ = 0;
};

TEST_P(SparseAttentionParityTest, ATenthMatchesDoublePrecisionInEveryType) {
  for (const KvType type : kAllKvTypes) {
    for (const int32_t old_tokens : {0, 1, 8, 9, 10, 15, 16, 99, 255, 256, 257, 1000, 2500}) {
      check({.type = type, .top_k = 0.1F}, {{old_tokens, 1}});
    }
  }
}

TEST_P(SparseAttentionParityTest, AllKeysAreDenseAttention) {
  for (const KvType type : kAllKvTypes) {
    for (const int32_t old_tokens : {0, 15, 300, 1000}) {
      const Case c{.type = type, .top_k = 1};
      AttentionStep step(device_, c, {{old_tokens, 1}});
      const std::vector<float> dense = step.run(0), sparse = step.run();
      EXPECT_LE(nmse(sparse, Doubles(dense.begin(), dense.end())), bar_of(type))
          << kv_type_name(type) << " " << old_tokens;
      check(c, {{old_tokens, 1}});
    }
  }
}

TEST_P(SparseAttentionParityTest, AnyShareMatchesDoublePrecision) {
  for (const float share : {1e-6F, 0.01F, 0.3F, 0.5F, 0.9F, 0.999F}) {
    check({.top_k = share}, {{700, 1}});
    check({.type = KvType::kInt4, .top_k = share}, {{130, 1}});
  }
}

TEST_P(SparseAttentionParityTest, HandlesGroupsOfHeadsOfAnySize) {
  for (const KvType type : kAllKvTypes) check_groups(type, {8, 24, 40, 64, 80, 96, 128, 200, 256});
}

TEST_P(SparseAttentionParityTest, HandlesOddHeads) {
  if (!takes_odd_heads(device_.kind())) GTEST_SKIP() << kWholeHeadsOnly;
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16}) check_groups(type, {5, 20});
}

TEST_P(SparseAttentionParityTest, ChoosesWithinTheWindow) {
  for (const KvType type : kAllKvTypes) {
    for (const int window : {1, 2, 16, 100, 256, 300, 2000}) {
      check({.heads = 6, .kv_heads = 2, .window = window, .type = type, .top_k = 0.1F},
            {{700, 1}, {9, 1}, {255, 1}});
    }
  }
}

TEST_P(SparseAttentionParityTest, OfEqualScoresTheFirstTakePart) {
  for (const KvType type : kAllKvTypes) {
    for (const int window : {0, 40, 300}) {
      const Case c{.heads = 4,
                   .kv_heads = 2,
                   .window = window,
                   .type = type,
                   .top_k = 0.1F,
                   .equal_keys = true};
      AttentionStep step(device_, c, {{9, 1}, {399, 1}, {520, 1}});
      EXPECT_LE(nmse(step.run(), step.expected()), bar_of(type)) << kv_type_name(type);
    }
  }
}

// Prompts attend to all positions, whatever else is in the step.
TEST_P(SparseAttentionParityTest, OnlyRowsThatGenerateAreSparse) {
  const Lengths lengths{{0, 50}, {300, 1}, {17, 1}, {256, 20}, {0, 1}, {511, 2}, {900, 1}};
  for (const KvType type : kAllKvTypes) {
    check({.heads = 9, .kv_heads = 3, .type = type, .top_k = 0.1F}, lengths);
    check({.heads = 8, .kv_heads = 2, .head_dim = 80, .type = type, .top_k = 0.25F}, lengths);
  }
  device_.ops().set_deterministic(true);
  check({.heads = 8, .kv_heads = 2, .top_k = 0.1F}, lengths);
}

// If a kernel rounds queries again, scores are no more precise than that. With few keys the scores
// are far apart.
TEST_P(SparseAttentionParityTest, TakesRowsOfHalves) {
  if (!device_.kind().half_activations) GTEST_SKIP() << kFloatActivationsOnly;
  for (const DType rows : {DType::kF16, DType::kBF16}) {
    for (const KvType type : kAllKvTypes) {
      check({.heads = 8, .kv_heads = 2, .type = type, .top_k = 0.25F, .rows = rows},
            {{15, 1}, {30, 1}, {9, 1}, {20, 3}}, /*precision=*/5e-3);
    }
  }
}

// A row has the same bits alone and among others.
TEST_P(SparseAttentionParityTest, DoesNotDependOnTheBatch) {
  for (const KvType type : kAllKvTypes) {
    const Case c{.heads = 6, .kv_heads = 2, .type = type, .top_k = 0.1F};
    const std::vector<float> alone = AttentionStep(device_, c, {{700, 1}}).run();
    AttentionStep batch(device_, c, {{700, 1}, {1200, 1}, {40, 1}, {3, 9}});
    std::vector<float> among = batch.run();
    among.resize(alone.size());
    EXPECT_TRUE(same_bits(alone, among)) << kv_type_name(type);
  }
}

// V that was not copied is read in host memory, and gives the same bits.
TEST_P(SparseAttentionParityTest, ValuesMayStayInMemoryOfTheHost) {
  if (!device_.device().reads_pinned_memory()) GTEST_SKIP() << "the device reads its own only";
  for (const KvType type : kAllKvTypes) {
    for (const int head_dim : {16, 64, 80, 128, 200, 256}) {
      if (type != KvType::kF16 && head_dim != 80) continue;
      for (const int window : {0, 300}) {
        const Case c{.heads = 9,
                     .kv_heads = 3,
                     .head_dim = head_dim,
                     .window = window,
                     .type = type,
                     .top_k = 0.1F};
        const Lengths lengths{{700, 1}, {15, 1}, {3, 9}, {16, 1}, {17, 1}, {2500, 1}, {0, 1}};
        SCOPED_TRACE(describe(c, lengths));
        AttentionStep step(device_, c, lengths);
        const std::vector<float> here = step.run();
        EXPECT_TRUE(same_bits(step.run_with_values_at_home(), here));
        const std::vector<float> again = step.run();
        EXPECT_FALSE(same_bits(again, here)) << "they were still on the device";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SparseAttentionParityTest, testing::ValuesIn(device_kinds()),
                         kind_name);

}  // namespace
}  // namespace spillway::parity
