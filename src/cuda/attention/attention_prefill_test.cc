// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/attention_prefill.h"

#include <functional>

#include "cuda/attention/attention_test_data.h"

namespace spillway::cuda {
namespace {

// Chunks that end inside, at and after tiles of 64 and 128, from the start and from later
// positions.
const std::vector<SequenceCase> kChunks = {{0, 1},    {0, 17},   {0, 64},    {0, 130}, {100, 33},
                                           {255, 70}, {63, 129}, {500, 257}, {1000, 1}};

class AttentionPrefillTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU";
  }
  // Checks with and without a unified maximum, in all variants of Hopper's kernel.
  static void check(const AttentionCase& c, float phi = 0,
                    const std::function<void(AttentionBatch&)>& change = nullptr) {
    AttentionBatch batch(c);
    if (change) change(batch);
    int rows = 1;
    for (const SequenceCase& s : c.sequences) rows = std::max(rows, s.rows);
    const GuardedBuffer scratch(
        std::vector<std::byte>(attention_prefill_scratch_bytes(), std::byte{0}));
    const PrefillVariant variants[] = {
        {}, {.persistent = false}, {.chained = false, .sections = false, .other_rows = true}};
    for (const bool unified : {false, true}) {
      for (const PrefillVariant& variant : variants) {
        if (c.kv_type != KvType::kF16 && (unified || &variant != variants)) continue;
        SCOPED_TRACE(testing::Message()
                     << "unified " << unified << ", variant " << &variant - variants);
        batch.expect_close(attention_tolerance(c), [&](const AttentionCall& call) {
          UnifiedMax maximum;
          maximum.enabled = unified;
          maximum.phi = phi;
          attention_prefill(call, maximum, rows + 130,
                            {scratch.get(), attention_prefill_scratch_bytes()}, nullptr, variant);
        });
        if (HasFatalFailure()) return;
      }
    }
    for (const std::byte b : scratch.read()) EXPECT_EQ(b, std::byte{0});
  }
};

TEST_F(AttentionPrefillTest, MatchesDoublePrecisionForEveryKvTypeAndHeadDim) {
  for (const KvType type : kAllKvTypes) {
    for (const int dim : {64, 128, 80, 96, 256, 72, 8, 200}) {
      SCOPED_TRACE(testing::Message() << kv_type_name(type) << ", head dim " << dim);
      check({.kv_type = type, .heads = 4, .kv_heads = 2, .head_dim = dim, .sequences = kChunks});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(AttentionPrefillTest, KeepsWhatIsNotANumber) {
  for_each_wrong_number([](AttentionCase c, const auto& put_it) {
    c.sequences = {{0, 33}, {190, 140}, {0, 9}};
    check(c, 0, put_it);
  });
}

TEST_F(AttentionPrefillTest, SharesKvBetweenQueryHeads) {
  for (const int group : {1, 3, 8}) {
    SCOPED_TRACE(testing::Message() << group << " heads per kv head");
    check({.heads = 2 * group, .kv_heads = 2, .head_dim = 128, .sequences = {{0, 200}, {77, 140}}});
    if (HasFatalFailure()) return;
  }
}

TEST_F(AttentionPrefillTest, TakesEveryTypeOfActivations) {
  for_each_type([](AttentionCase c) {
    c.sequences = {{0, 40}, {130, 70}};
    check(c);
  });
}

TEST_F(AttentionPrefillTest, SeesOnlyTheWindow) {
  for (const KvType type : kAllKvTypes) {
    for (const int window : {1, 7, 64, 100, 5000}) {
      for (const int dim : {64, 128}) {
        SCOPED_TRACE(testing::Message()
                     << kv_type_name(type) << ", window " << window << ", head dim " << dim);
        check({.kv_type = type,
               .heads = 2,
               .kv_heads = 2,
               .head_dim = dim,
               .window = window,
               .sequences = {{3, 1}, {300, 150}, {0, 200}}});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(AttentionPrefillTest, IsRightForExtremeScores) {
  // Scores far from the unified maximum, in a few rows only, from some position on, and at its
  // bounds.
  for (const auto shift :
       {+[](int) { return 900.0F; }, +[](int) { return -900.0F; },
        +[](int p) { return p == 100 ? 2000.0F : 0.0F; },
        +[](int p) { return 0.5F * static_cast<float>(p); },
        +[](int p) { return p < 200 ? -25.0F : 0.0F; },
        +[](int p) { return p == 250 ? 7.0F : 0.0F; }, +[](int) { return -12.0F; },
        +[](int p) { return p % 2 == 0 ? 6.4F : -30.0F; }}) {
    for (const int dim : {64, 128}) {
      check({.heads = 4,
             .kv_heads = 2,
             .head_dim = dim,
             .score_size = 0.5F,
             .sequences = {{0, 300}, {90, 50}, {0, 1}, {700, 190}},
             .shift = shift});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(AttentionPrefillTest, GivesUpAUnifiedMaximumThatNoRowHas) {
  // More work items fail than a thread block keeps.
  const std::vector<SequenceCase> sequences(70, {0, 10});
  check({.heads = 64, .kv_heads = 2, .head_dim = 64, .sequences = sequences}, 100);
  check({.heads = 64, .kv_heads = 2, .head_dim = 64, .sequences = sequences}, -100);
  check({.heads = 64, .kv_heads = 2, .head_dim = 128, .sequences = sequences}, 100);
}

TEST_F(AttentionPrefillTest, SharesWorkOfManySequencesBetweenBlocks) {
  std::vector<SequenceCase> sequences;
  for (int i = 0; i < 40; ++i) sequences.push_back({i % 5 * 37, 1 + i * i % 333});
  for (const int dim : {64, 128}) {
    check({.heads = 12, .kv_heads = 3, .head_dim = dim, .sequences = sequences});
    check({.dtype = DType::kBF16,
           .heads = 12,
           .kv_heads = 3,
           .head_dim = dim,
           .window = 150,
           .sequences = sequences});
  }
}

}  // namespace
}  // namespace spillway::cuda
