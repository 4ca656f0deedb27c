// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/attention_decode.h"

#include <functional>

#include "cuda/attention/attention_test_data.h"

namespace spillway::cuda {
namespace {

// One batch with contexts of 1, 15, 16, 17, 255, 256, 257, 1000 and 4501 tokens; the last one has
// more than 16 partitions. The last two have longer partitions where KV is quantized or shared by
// query heads.
const std::vector<SequenceCase> kMixed = {{0, 1},   {14, 1},  {15, 1},  {16, 1},  {254, 1},
                                          {255, 1}, {256, 1}, {999, 1}, {4500, 1}};

class AttentionDecodeTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU";
  }
  // Checks with or without the unified maximum, with `surplus` partitions more than needed.
  static void check(const AttentionCase& c, int surplus = 3,
                    const std::function<void(AttentionBatch&)>& change = nullptr) {
    AttentionBatch batch(c);
    if (change) change(batch);
    UnifiedMax unified;
    unified.enabled = GetParam();
    int context = 1, rows = 1;
    for (const SequenceCase& s : c.sequences) {
      context = std::max(context, s.start + s.rows);
      rows = std::max(rows, s.rows);
    }
    const int parts = attention_partitions(context, c.window) + surplus;
    const size_t bytes = attention_decode_scratch_bytes(static_cast<int>(c.sequences.size()) * rows,
                                                        c.heads, c.kv_heads, c.head_dim, parts);
    const GuardedBuffer scratch(std::vector<std::byte>(bytes, std::byte{0xff}));  // NaN
    for (int turn = 0; turn < 2; ++turn) {  // the second round finds the first one's slots
      batch.expect_close(attention_tolerance(c), [&](const AttentionCall& call) {
        attention_decode(call, unified, rows, parts, {scratch.get(), bytes}, nullptr);
      });
      if (testing::Test::HasFatalFailure()) return;
    }
    (void)scratch.read();
  }
};
INSTANTIATE_TEST_SUITE_P(Maximum, AttentionDecodeTest, ::testing::Bool(), [](const auto& param) {
  return param.param ? "Unified" : "Synchronized";
});

TEST_P(AttentionDecodeTest, MatchesDoublePrecisionForEveryKvTypeAndHeadDim) {
  for (const KvType type : kAllKvTypes) {
    for (const int dim : {64, 80, 96, 128, 256, 72, 8}) {
      SCOPED_TRACE(testing::Message() << kv_type_name(type) << ", head dim " << dim);
      check({.kv_type = type, .heads = 4, .kv_heads = 2, .head_dim = dim, .sequences = kMixed});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(AttentionDecodeTest, KeepsWhatIsNotANumber) {
  for_each_wrong_number([&](AttentionCase c, const auto& put_it) {
    for (const int group : {1, 4, 12}) {
      SCOPED_TRACE(testing::Message() << group << " heads per kv head");
      c.heads = group * c.kv_heads;
      AttentionCase plain = c, windowed = c;
      plain.sequences = {{37, 1}, {700, 1}, {300, 2}};
      check(plain, 3, put_it);
      windowed.dtype = DType::kBF16;
      windowed.window = 200;
      windowed.sequences = {{5, 1}, {20, 1}, {255, 1}};
      check(windowed, 3, put_it);
    }
  });
}

TEST_P(AttentionDecodeTest, SharesKvBetweenQueryHeads) {
  for (const KvType type : {KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
    for (const int group : {1, 3, 4, 8, 12}) {
      SCOPED_TRACE(testing::Message()
                   << kv_type_name(type) << ", " << group << " heads per kv head");
      check({.kv_type = type,
             .heads = 2 * group,
             .kv_heads = 2,
             .head_dim = 128,
             .sequences = {{299, 1}, {77, 1}}});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(AttentionDecodeTest, TakesEveryTypeOfActivations) {
  for_each_type([](AttentionCase c) {
    c.sequences = {{0, 1}, {530, 1}};
    check(c);
  });
}

TEST_P(AttentionDecodeTest, SeesOnlyTheWindow) {
  for (const KvType type : kAllKvTypes) {
    for (const int window : {1, 7, 256, 300, 700, 5000}) {
      SCOPED_TRACE(testing::Message() << kv_type_name(type) << ", window " << window);
      check({.kv_type = type,
             .heads = 4,
             .kv_heads = 4,
             .head_dim = 64,
             .window = window,
             .sequences = {{3, 1}, {600, 1}, {1023, 1}, {1024, 1}}},
            0);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(AttentionDecodeTest, TakesAFewRowsPerSequence) {
  check({.heads = 8, .kv_heads = 2, .head_dim = 128, .sequences = {{250, 5}, {0, 3}, {511, 2}}});
}

// If query heads share KV, F16 has partitions of several rounds: these contexts lie around the ends
// of rounds and partitions, and around the lengths from which partitions are longer.
TEST_P(AttentionDecodeTest, GoesOverLongPartsInTurns) {
  const std::vector<SequenceCase> ends = {{510, 4},  {767, 1},  {768, 1},  {799, 1},  {1022, 4},
                                          {1279, 1}, {1535, 1}, {4094, 4}, {4351, 1}, {4999, 1}};
  for (const int dim : {64, 80, 96, 128, 256}) {
    SCOPED_TRACE(testing::Message() << "head dim " << dim);
    check({.heads = 6, .kv_heads = 2, .head_dim = dim, .sequences = ends});
    // There are so few thread blocks that each takes more of the shared memory.
    check({.heads = 12, .kv_heads = 1, .head_dim = dim, .sequences = {{4900, 1}}});
    if (HasFatalFailure()) return;
  }
  check({.dtype = DType::kBF16, .heads = 8, .kv_heads = 1, .head_dim = 128, .sequences = ends});
}

// The context from which partitions are long depends on the number of rows in the step.
TEST_P(AttentionDecodeTest, IsRightHoweverManyGoTogether) {
  for (const int together : {1, 8, 64, 1024}) {
    SCOPED_TRACE(testing::Message() << together << " together");
    check({.heads = 16,
           .kv_heads = 2,
           .head_dim = 128,
           .sequences = {{3, 1}, {511, 2}, {2047, 2}, {2600, 1}, {4094, 4}, {8500, 1}},
           .together = together});
    if (HasFatalFailure()) return;
  }
}

TEST_P(AttentionDecodeTest, SeesOnlyTheWindowInLongParts) {
  for (const int window : {40, 513, 700, 1025, 4097, 4500}) {
    SCOPED_TRACE(testing::Message() << "window " << window);
    check({.heads = 16,
           .kv_heads = 2,
           .head_dim = 128,
           .window = window,
           .sequences = {{3, 1}, {600, 1}, {1022, 4}, {1300, 1}, {5000, 1}}},
          0);
    if (HasFatalFailure()) return;
  }
}

// These scores make a later round of a partition leave the range or the reference of the rounds
// before it.
TEST_P(AttentionDecodeTest, IsRightForTurnsOutsideTheRange) {
  struct Shift {
    const char* name;
    float (*at)(int);
  };
  for (const Shift& shift : {
           Shift{"a later turn above", [](int p) { return p / 256 % 4 == 2 ? 75.0F : 0.0F; }},
           Shift{"a later turn below", [](int p) { return p / 256 % 4 == 1 ? -75.0F : 0.0F; }},
           Shift{"a first turn above", [](int p) { return p / 256 % 4 == 0 ? 75.0F : 0.0F; }},
           Shift{"one huge score", [](int p) { return p == 3000 ? 2000.0F : 0.0F; }},
           Shift{"falling", [](int p) { return -0.5F * static_cast<float>(p); }},
           Shift{"no weight in some turns",
                 [](int p) { return p / 256 % 2 == 0 ? -INFINITY : 0.0F; }},
           Shift{"no weight in a whole part", [](int p) { return p < 1024 ? -INFINITY : 0.0F; }},
       }) {
    for (const int dim : {64, 128}) {
      SCOPED_TRACE(testing::Message() << shift.name << ", head dim " << dim);
      check({.heads = 10,
             .kv_heads = 2,
             .head_dim = dim,
             .score_size = 0.5F,
             .sequences = {{1500, 1}, {4400, 1}},
             .shift = shift.at});
      if (HasFatalFailure()) return;
    }
  }
}

// Scores far outside the range of the unified maximum: the tokens that have them use a maximum of
// their own.
TEST_P(AttentionDecodeTest, IsRightForScoresOutsideTheRange) {
  struct Shift {
    const char* name;
    float (*at)(int);
  };
  for (const Shift& shift : {
           Shift{"all far above", [](int) { return 900.0F; }},
           Shift{"all far below", [](int) { return -900.0F; }},
           Shift{"one huge score", [](int p) { return p == 300 ? 2000.0F : 0.0F; }},
           Shift{"one part above, others in range",
                 [](int p) { return p / 256 == 1 ? 75.0F : 0.0F; }},
           Shift{"one part below, others in range",
                 [](int p) { return p / 256 == 0 ? -75.0F : 0.0F; }},
           Shift{"all low but one part", [](int p) { return p / 256 == 2 ? -30.0F : -500.0F; }},
           Shift{"growing", [](int p) { return 0.5F * static_cast<float>(p); }},
       }) {
    for (const KvType type : kAllKvTypes) {
      SCOPED_TRACE(testing::Message() << shift.name << ", " << kv_type_name(type));
      // Quantized keys with one large element are coarse, but the reference computes with the same
      // keys.
      check({.kv_type = type,
             .dtype = type == KvType::kF32 ? DType::kF32 : DType::kF16,
             .heads = 4,
             .kv_heads = 2,
             .head_dim = 64,
             .score_size = 0.5F,
             .sequences = {{700, 1}, {20, 1}, {4400, 1}},
             .shift = shift.at});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(AttentionDecodeTest, DoesNotDependOnTheBatchOrOnWhereBlocksLie) {
  for (const KvType type : {KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
    SCOPED_TRACE(kv_type_name(type));
    const AttentionCase alone{
        .kv_type = type, .heads = 8, .kv_heads = 2, .head_dim = 128, .sequences = {{999, 1}}};
    AttentionBatch first(alone, 5), second(alone, 5);
    // Puts the same tokens into other blocks.
    std::vector<std::byte> k = second.k, v = second.v;
    const size_t block_bytes = 2 * static_cast<size_t>(kv_page_bytes(type, 128));
    const size_t blocks = k.size() / block_bytes;
    for (size_t b = 0; b < blocks; ++b) {
      std::memcpy(second.k.data() + (blocks - 1 - b) * block_bytes, k.data() + b * block_bytes,
                  block_bytes);
      std::memcpy(second.v.data() + (blocks - 1 - b) * block_bytes, v.data() + b * block_bytes,
                  block_bytes);
    }
    for (int32_t& b : second.table)
      if (b < static_cast<int32_t>(blocks)) b = static_cast<int32_t>(blocks) - 1 - b;
    UnifiedMax unified;
    unified.enabled = GetParam();
    const auto run = [&](AttentionBatch& batch, int parts) {
      std::vector<std::byte> out;
      const size_t bytes = attention_decode_scratch_bytes(1, 8, 2, 128, parts);
      const GuardedBuffer scratch(std::vector<std::byte>(bytes, std::byte{0xff}));  // NaN
      batch.expect_close(attention_tolerance(alone), [&](const AttentionCall& call) {
        attention_decode(call, unified, 1, parts, {scratch.get(), bytes}, nullptr);
        SPW_CUDA_CHECK(cudaDeviceSynchronize());
        out.resize(static_cast<size_t>(call.out.cols * 2));
        SPW_CUDA_CHECK(cudaMemcpy(out.data(), call.out.data + call.out.stride * 2, out.size(),
                                  cudaMemcpyDeviceToHost));
      });
      return out;
    };
    const std::vector<std::byte> expected = run(first, 4);
    EXPECT_EQ(run(second, 4), expected);
    EXPECT_EQ(run(first, 9), expected);
    EXPECT_EQ(run(first, 40), expected);  // as if some rows had longer partitions
  }
}

TEST(AttentionPartitionsTest, CountsThePartitionsThatAWindowTouches) {
  EXPECT_EQ(attention_partitions(1, 0), 1);
  EXPECT_EQ(attention_partitions(256, 0), 1);
  EXPECT_EQ(attention_partitions(257, 0), 2);
  EXPECT_EQ(attention_partitions(10000, 1), 1);
  EXPECT_EQ(attention_partitions(10000, 2), 2);
  EXPECT_EQ(attention_partitions(10000, 257), 2);
  EXPECT_EQ(attention_partitions(10000, 258), 3);
  EXPECT_EQ(attention_partitions(300, 4096), 2);
}

}  // namespace
}  // namespace spillway::cuda
