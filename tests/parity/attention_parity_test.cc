// SPDX-License-Identifier: Apache-2.0
// kv_append and attention over shuffled, poisoned pages.
#include <cmath>

#include "tests/parity/paged_kv.h"
#include "tests/parity/parity_device.h"
#include "tests/parity/references.h"

namespace spillway::parity {
namespace {

struct Case {
  int heads = 4, kv_heads = 2, head_dim = 64;
  int window = 0;
  KvType type = KvType::kF16;
  float deviation = 1;  // of q and k: large values make one-hot softmaxes
};

// Against double precision over what is stored: the error of the arithmetic alone.
double bar_of(KvType type) {
  if (type == KvType::kF32) return kFloatBar;
  return type == KvType::kF16 ? 1e-5 : 1e-4;
}

class AttentionParityTest : public ParityTest {
 protected:
  struct Sequence {
    int32_t old_tokens, rows;
    std::vector<float> k, v;
    std::vector<int32_t> table;
  };

  // Sequences with some tokens in the cache already, and the last `rows` of each in this step.
  void check(const Case& c, const std::vector<std::pair<int32_t, int32_t>>& lengths) {
    if (!device_.kind().any_alignment && (c.head_dim % 8 != 0 || c.head_dim > 256)) return;
    SCOPED_TRACE(testing::Message()
                 << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim << ", window "
                 << c.window << ", " << kv_type_name(c.type) << ", first sequence "
                 << lengths[0].first << " + " << lengths[0].second);
    const int64_t width = int64_t{c.kv_heads} * c.head_dim;
    const int64_t q_width = int64_t{c.heads} * c.head_dim;
    PagedKv kv(device_, c.type, c.kv_heads, c.head_dim, 600);
    std::vector<Sequence> sequences;
    std::vector<SequenceSpan> spans;
    int32_t rows = 0;
    uint32_t seed = 1;
    for (const auto& [old_tokens, new_rows] : lengths) {
      const int64_t total = old_tokens + new_rows;
      sequences.push_back({old_tokens, new_rows, random_floats(total * width, ++seed, c.deviation),
                           random_floats(total * width, ++seed), kv.take_blocks(total)});
      rows += new_rows;
    }
    std::vector<float> k_rows, v_rows;
    int32_t first = 0;
    for (const Sequence& s : sequences) {
      if (s.old_tokens > 0) {
        const auto old = s.old_tokens * width;
        const Matrix k(device_, s.old_tokens, width, {s.k.begin(), s.k.begin() + old});
        const Matrix v(device_, s.old_tokens, width, {s.v.begin(), s.v.begin() + old});
        const SequenceSpan span{0, s.old_tokens, 0, s.table};
        device_.ops().kv_append(k.view(), v.view(), kv.view(), {&span, 1});
      }
      k_rows.insert(k_rows.end(), s.k.begin() + s.old_tokens * width, s.k.end());
      v_rows.insert(v_rows.end(), s.v.begin() + s.old_tokens * width, s.v.end());
      spans.push_back({first, s.rows, s.old_tokens, s.table});
      first += s.rows;
    }
    const Matrix k(device_, rows, width, k_rows), v(device_, rows, width, v_rows);
    const auto q_values = random_floats(rows * q_width, 77, c.deviation);
    const Matrix q(device_, rows, q_width, q_values), out(device_, rows, q_width);
    device_.ops().kv_append(k.view(), v.view(), kv.view(), spans);
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    device_.ops().attention(q.view(), kv.view(), spans, {c.heads, scale, c.window}, out.view());

    Doubles expected;
    int64_t row = 0;
    for (const Sequence& s : sequences) {
      const auto ks = as_stored(c.type, KvPart::kKeys, c.head_dim, s.k),
                 vs = as_stored(c.type, KvPart::kValues, c.head_dim, s.v);
      for (int64_t i = 0; i < s.rows; ++i, ++row) {
        const Doubles one =
            attention_reference(q_values.data() + row * q_width, ks, vs, s.old_tokens + i + 1,
                                c.heads, c.kv_heads, c.head_dim, scale, c.window);
        expected.insert(expected.end(), one.begin(), one.end());
      }
    }
    EXPECT_LE(nmse(out.read(), expected), bar_of(c.type));
    out.expect_guards();
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

TEST_P(AttentionParityTest, HandlesGroupsOfHeadsAndOddHeadSizes) {
  for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {9, 3}, {8, 1}, {32, 4}, {5, 5}}) {
    for (const int head_dim : {16, 40, 72, 80, 128, 5}) {
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
  check({.heads = 3, .kv_heads = 1, .head_dim = 20, .type = KvType::kF32}, {{300, 40}});
}

// Several query heads of a kv head may have kernels of their own, which take them in fours.
TEST_P(AttentionParityTest, GroupsOfAnySizeMatchDoublePrecisionInDecode) {
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    for (const auto& [heads, kv_heads] :
         {std::pair{6, 2}, {8, 2}, {15, 3}, {14, 2}, {16, 2}, {36, 3}, {32, 1}}) {
      for (const int head_dim : {8, 24, 64, 80, 128, 200, 256}) {
        const Case c{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .type = type};
        check(c, {{0, 1}, {16, 1}, {255, 1}, {256, 1}, {300, 2}});
        check({.heads = heads,
               .kv_heads = kv_heads,
               .head_dim = head_dim,
               .window = 40,
               .type = type},
              {{275, 1}, {520, 3}, {9, 1}});
      }
    }
  }
  for (const int head_dim : {5, 20, 33, 300}) {
    check({.heads = 8, .kv_heads = 2, .head_dim = head_dim}, {{300, 1}, {15, 2}});
  }
}

// Spans of many rows may have kernels of their own.
TEST_P(AttentionParityTest, ManyRowsOfEveryHeadSizeMatchDoublePrecision) {
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {3, 1}, {4, 1}, {8, 1}}) {
      for (const int head_dim : {8, 24, 40, 64, 80, 96, 112, 128, 200, 256}) {
        const Case c{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .type = type};
        check(c, {{0, 33}});
        check(c, {{249, 9}});
      }
    }
  }
  for (const int head_dim : {5, 20, 33, 300}) {
    check({.heads = 3, .kv_heads = 1, .head_dim = head_dim}, {{37, 12}});
  }
}

// Where the kernel's tiles, cuts of the keys and pages begin and end.
TEST_P(AttentionParityTest, ChunksAtAnyPositionMatchDoublePrecision) {
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    for (const int32_t start : {1, 15, 240, 255, 256, 257, 505, 767}) {
      for (const int32_t rows : {8, 9, 16, 31}) {
        check({.heads = 6, .kv_heads = 2, .head_dim = 32, .type = type}, {{start, rows}});
      }
    }
    check({.heads = 8, .kv_heads = 1, .type = type}, {{700, 130}});
    check({.heads = 16, .kv_heads = 1, .head_dim = 16, .type = type}, {{0, 300}});
  }
}

// Errors of scores grow with the scores; those of what softmax weighs do not.
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
