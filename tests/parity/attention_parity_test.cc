// SPDX-License-Identifier: Apache-2.0
// Tests kv_append and attention over shuffled, poisoned pages.
#include "tests/parity/attention_step.h"
#include "tests/parity/paged_kv.h"
#include "tests/parity/parity_device.h"

namespace spillway::parity {
namespace {

using Case = AttentionCase;

class AttentionParityTest : public ParityTest {
 protected:
  void check(const Case& c, const std::vector<std::pair<int32_t, int32_t>>& lengths) {
    SCOPED_TRACE(describe(c, lengths));
    AttentionStep step(device_, c, lengths);
    EXPECT_LE(nmse(step.run(), step.expected()), bar_of(c));
  }

  void check_groups(KvType type, const std::vector<int>& head_dims) {
    for (const auto& [heads, kv_heads] :
         {std::pair{6, 2}, {8, 2}, {15, 3}, {14, 2}, {16, 2}, {36, 3}, {32, 1}}) {
      for (const int head_dim : head_dims) {
        Case c{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .type = type};
        check(c, {{0, 1}, {16, 1}, {255, 1}, {256, 1}, {300, 2}});
        c.window = 40;
        check(c, {{275, 1}, {520, 3}, {9, 1}});
      }
    }
  }
};

TEST_P(AttentionParityTest, PrefillMatchesDoublePrecision) {
  for (const KvType type : kAllKvTypes) {
    for (const int32_t rows : {1, 2, 3, 7, 17, 33, 150}) check({.type = type}, {{0, rows}});
    check({.heads = 2, .kv_heads = 1, .type = type}, {{0, 600}});
  }
}

TEST_P(AttentionParityTest, DecodeMatchesDoublePrecision) {
  for (const KvType type : kAllKvTypes) {
    for (const int32_t old_tokens : {0, 15, 16, 17, 255, 256, 257, 1000}) {
      check({.type = type}, {{old_tokens, 1}});
    }
  }
}

// Kernels divide long contexts into longer partitions.
TEST_P(AttentionParityTest, LongContextsOfGroupsMatchDoublePrecision) {
  for (const KvType type : {KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
    check({.heads = 8, .kv_heads = 1, .head_dim = 128, .type = type},
          {{511, 1}, {512, 1}, {770, 1}, {1024, 1}, {4095, 1}, {4096, 1}, {4610, 1}});
  }
}

TEST_P(AttentionParityTest, HandlesGroupsOfHeadsOfAnySize) {
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {9, 3}, {8, 1}, {32, 4}, {5, 5}}) {
    for (const int head_dim : {16, 40, 72, 80, 128}) {
      check({.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim}, {{37, 5}});
    }
  }
  for (const KvType type : {KvType::kInt8, KvType::kInt4}) {
    for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {3, 1}, {4, 1}, {8, 1}}) {
      for (const int head_dim : {8, 16, 24, 40, 64, 80, 96, 112, 128, 200, 256}) {
        const Case c{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .type = type};
        check(c, {{100, 1}});
        check(c, {{37, 5}});
      }
    }
  }
  for (const int head_dim : {8, 24, 96, 112, 256}) {
    check({.heads = 3, .kv_heads = 1, .head_dim = head_dim}, {{100, 1}});
  }
}

TEST_P(AttentionParityTest, OddHeadsMatchDoublePrecision) {
  if (!takes_odd_heads(device_.kind())) GTEST_SKIP() << kWholeHeadsOnly;
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {9, 3}, {8, 1}, {32, 4}, {5, 5}})
    check({.heads = heads, .kv_heads = kv_heads, .head_dim = 5}, {{37, 5}});
  for (const int head_dim : {5, 20, 33, 300}) {
    check({.heads = 8, .kv_heads = 2, .head_dim = head_dim}, {{300, 1}, {15, 2}});
    check({.heads = 3, .kv_heads = 1, .head_dim = head_dim}, {{37, 12}});
  }
  check({.heads = 3, .kv_heads = 1, .head_dim = 20, .type = KvType::kF32}, {{300, 40}});
}

// Groups of query heads per kv head may have kernels of their own, which take them in fours. Small
// and large heads are tests of their own, since under a sanitizer each takes minutes.
const std::vector<int> kSmallHeads = {8, 24, 64, 80}, kLargeHeads = {128, 200, 256};
TEST_P(AttentionParityTest, GroupsOfSmallHeadsMatchDoublePrecisionInDecodeF16) {
  check_groups(KvType::kF16, kSmallHeads);
}
TEST_P(AttentionParityTest, GroupsOfLargeHeadsMatchDoublePrecisionInDecodeF16) {
  check_groups(KvType::kF16, kLargeHeads);
}
TEST_P(AttentionParityTest, GroupsOfSmallHeadsMatchDoublePrecisionInDecodeBf16) {
  check_groups(KvType::kBf16, kSmallHeads);
}
TEST_P(AttentionParityTest, GroupsOfLargeHeadsMatchDoublePrecisionInDecodeBf16) {
  check_groups(KvType::kBf16, kLargeHeads);
}
TEST_P(AttentionParityTest, GroupsOfSmallHeadsMatchDoublePrecisionInDecodeInt8) {
  check_groups(KvType::kInt8, kSmallHeads);
}
TEST_P(AttentionParityTest, GroupsOfLargeHeadsMatchDoublePrecisionInDecodeInt8) {
  check_groups(KvType::kInt8, kLargeHeads);
}
TEST_P(AttentionParityTest, GroupsOfSmallHeadsMatchDoublePrecisionInDecodeInt4) {
  check_groups(KvType::kInt4, kSmallHeads);
}
TEST_P(AttentionParityTest, GroupsOfLargeHeadsMatchDoublePrecisionInDecodeInt4) {
  check_groups(KvType::kInt4, kLargeHeads);
}

// Spans of many rows may have kernels of their own.
TEST_P(AttentionParityTest, ManyRowsOfEveryHeadSizeMatchDoublePrecision) {
  for (const KvType type : {KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
    for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {3, 1}, {4, 1}, {8, 1}}) {
      for (const int head_dim : {8, 24, 40, 64, 80, 96, 112, 128, 200, 256}) {
        const Case c{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .type = type};
        check(c, {{0, 33}});
        check(c, {{249, 9}});
      }
    }
  }
}

// Chunks begin and end around the borders of a kernel's tiles, of its partitions of the keys, and
// of pages.
TEST_P(AttentionParityTest, ChunksAtAnyPositionMatchDoublePrecision) {
  for (const KvType type : {KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4}) {
    for (const int32_t start : {1, 15, 240, 255, 256, 257, 505, 767}) {
      for (const int32_t rows : {8, 9, 16, 31}) {
        check({.heads = 6, .kv_heads = 2, .head_dim = 32, .type = type}, {{start, rows}});
      }
    }
    check({.heads = 8, .kv_heads = 1, .type = type}, {{700, 130}});
    check({.heads = 16, .kv_heads = 1, .head_dim = 16, .type = type}, {{0, 300}});
  }
}

// Errors of scores grow with the scores; errors of the values that softmax weighs do not.
TEST_P(AttentionParityTest, LargeScoresKeepTheirPrecision) {
  for (const KvType type : {KvType::kF16, KvType::kInt8}) {
    check({.type = type, .deviation = 2}, {{300, 40}});
    check({.type = type, .deviation = 4}, {{300, 40}});
    for (const int32_t old_tokens : {40, 300, 1000}) {
      const std::pair<int32_t, int32_t> decode{old_tokens, 1};
      check({.heads = 16, .kv_heads = 4, .type = type, .deviation = 2}, {decode});
      check({.heads = 16, .kv_heads = 4, .head_dim = 128, .type = type, .deviation = 4}, {decode});
      check({.heads = 16, .kv_heads = 2, .type = type, .deviation = 4}, {decode});
    }
  }
  check({.heads = 16, .kv_heads = 4, .deviation = 1e-3F}, {{300, 1}});
  check({.deviation = 1e-3F}, {{300, 40}});
}

TEST_P(AttentionParityTest, WindowHidesWhatIsTooFarBack) {
  for (const int window : {1, 2, 16, 100, 256, 300}) {
    check({.window = window}, {{0, 70}});
    check({.window = window}, {{700, 1}});
    check({.window = window, .type = KvType::kInt8}, {{700, 1}});
    check({.window = window, .type = KvType::kInt4}, {{290, 20}});
    check({.window = window, .type = KvType::kF32}, {{500, 40}});
    check({.heads = 3, .kv_heads = 1, .window = window}, {{240, 300}});
    check({.heads = 8, .kv_heads = 1, .window = window, .type = KvType::kInt8}, {{600, 40}});
  }
}

TEST_P(AttentionParityTest, MixesPrefillAndDecodeInOneStep) {
  for (const KvType type : kAllKvTypes) {
    check({.heads = 9, .kv_heads = 3, .type = type},
          {{0, 50}, {300, 1}, {17, 1}, {256, 20}, {0, 1}, {511, 2}});
    check({.heads = 8, .kv_heads = 2, .head_dim = 80, .type = type},
          {{9, 1}, {260, 8}, {0, 7}, {100, 64}, {640, 1}, {0, 8}});
  }
}

TEST_P(AttentionParityTest, LargeScoresStayFinite) {
  check({.type = KvType::kF32, .deviation = 30}, {{300, 20}});
  check({.type = KvType::kF32, .deviation = 1e6F}, {{300, 3}});
  check({.type = KvType::kF32, .deviation = 1e-6F}, {{300, 3}});
}

// A device may have one kernel for the projections and what follows them. Pages must then hold what
// the single ops leave there, and nothing else may be written.
TEST_P(AttentionParityTest, ProjectsAndAppendsAsSingleOpsDo) {
  struct Shape {
    int heads, kv_heads, head_dim, rope_dims;
    RopeStyle style;
    bool bias;
    int32_t start, rows;
  };
  const int64_t k = 96;
  for (const Shape& s : {Shape{4, 4, 64, 64, RopeStyle::kHalves, false, 37, 1},
                         Shape{6, 2, 128, 128, RopeStyle::kHalves, true, 0, 1},
                         Shape{4, 1, 64, 64, RopeStyle::kInterleaved, true, 63, 1},
                         Shape{4, 2, 64, 32, RopeStyle::kHalves, true, 15, 1},
                         Shape{4, 2, 24, 24, RopeStyle::kHalves, false, 16, 5}}) {
    for (const KvType type : kAllKvTypes) {
      SCOPED_TRACE(testing::Message() << s.heads << "/" << s.kv_heads << " heads of " << s.head_dim
                                      << ", rope " << s.rope_dims << ", " << kv_type_name(type));
      const int64_t q_dim = int64_t{s.heads} * s.head_dim,
                    kv_dim = int64_t{s.kv_heads} * s.head_dim;
      const Matrix x(device_, s.rows, k, random_floats(s.rows * k, 1));
      const Weights q = random_weights(device_, DType::kF32, q_dim, k, 2);
      const Weights key = random_weights(device_, DType::kF32, kv_dim, k, 3);
      const Weights value = random_weights(device_, DType::kF32, kv_dim, k, 4);
      const Weights bias = s.bias ? random_weights(device_, DType::kF32, 1, kv_dim, 5) : Weights();
      const Matrix angles(device_, s.rows, s.rope_dims, random_floats(s.rows * s.rope_dims, 6));
      std::vector<float> queries[2];
      std::vector<std::byte> planes[2];
      for (const bool single : {false, true}) {
        PagedKv kv(device_, type, s.kv_heads, s.head_dim, 8);
        const auto table = kv.take_blocks(s.start + s.rows);
        const SequenceSpan span{0, s.rows, s.start, table};
        const Matrix q_out(device_, s.rows, q_dim), k_out(device_, s.rows, kv_dim),
            v_out(device_, s.rows, kv_dim);
        const Projection parts[] = {{q.view(), {}, q_out.view()},
                                    {key.view(), bias.view(), k_out.view()},
                                    {value.view(), bias.view(), v_out.view()}};
        if (single) {
          device_.ops().linears(parts, x.view());
          device_.ops().rope_and_append(q_out.view(), k_out.view(), v_out.view(), angles.view(),
                                        s.style, kv.view(), {&span, 1});
        } else {
          device_.ops().project_and_append(parts[0], parts[1], parts[2], x.view(), angles.view(),
                                           s.style, kv.view(), {&span, 1});
        }
        queries[single] = q_out.read();
        const auto bytes = static_cast<size_t>(kv.view().block_bytes() * 8);
        planes[single].resize(2 * bytes);
        device_.download(planes[single].data(), kv.view().k, bytes);
        device_.download(planes[single].data() + bytes, kv.view().v, bytes);
        for (const Matrix* out : {&q_out, &k_out, &v_out}) out->expect_guards();
      }
      EXPECT_TRUE(same_bits(queries[0], queries[1]));
      EXPECT_EQ(planes[0], planes[1]);
    }
  }
}

TEST_P(AttentionParityTest, AppendWritesItsOwnSlotsOnly) {
  for (const KvType type : kAllKvTypes) {
    PagedKv kv(device_, type, 2, 24, 8);
    const auto table = kv.take_blocks(40);
    const auto k = random_floats(5 * 48, 1), v = random_floats(5 * 48, 2);
    const Matrix keys(device_, 5, 48, k), values(device_, 5, 48, v);
    const SequenceSpan span{0, 5, 14, table};
    device_.ops().kv_append(keys.view(), values.view(), kv.view(), {&span, 1});
    const KvPageLayout layout(type, 24);
    std::vector<std::byte> plane(static_cast<size_t>(kv.view().block_bytes() * 8)), expected;
    device_.download(plane.data(), kv.view().v, plane.size());
    expected.assign(plane.size(), std::byte{0xff});
    for (int64_t i = 0; i < 5; ++i) {
      for (int64_t head = 0; head < 2; ++head) {
        const int64_t page = table[static_cast<size_t>((14 + i) / 16)] * 2 + head;
        store_kv_reference(layout, KvPart::kValues, v.data() + i * 48 + head * 24,
                           expected.data() + page * layout.bytes, static_cast<int>((14 + i) % 16));
      }
    }
    EXPECT_EQ(plane, expected) << kv_type_name(type);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, AttentionParityTest, testing::ValuesIn(device_kinds()),
                         kind_name);

}  // namespace
}  // namespace spillway::parity
