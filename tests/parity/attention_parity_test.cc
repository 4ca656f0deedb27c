// SPDX-License-Identifier: Apache-2.0
// kv_append and attention over shuffled, poisoned pages.
#include <cmath>

#include "tensor/dequantize.h"
#include "tests/parity/paged_kv.h"
#include "tests/parity/parity_device.h"
#include "tests/parity/references.h"

namespace spillway::parity {
namespace {

struct Case {
  int heads = 4, kv_heads = 2, head_dim = 64;
  int window = 0;
  DType type = DType::kF16;
  float deviation = 1;  // of q and k: large values make one-hot softmaxes
};

class AttentionParityTest : public ParityTest {
 protected:
  struct Sequence {
    int32_t old_tokens, rows;
    std::vector<float> k, v;
    std::vector<int32_t> table;
  };

  // Sequences with some tokens in the cache already, and the last `rows` of each in this step.
  void check(const Case& c, const std::vector<std::pair<int32_t, int32_t>>& lengths) {
    SCOPED_TRACE(testing::Message()
                 << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim << ", window "
                 << c.window << ", " << dtype_name(c.type) << ", first sequence "
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
      const auto ks = as_stored(c.type, s.k), vs = as_stored(c.type, s.v);
      for (int64_t i = 0; i < s.rows; ++i, ++row) {
        const Doubles one =
            attention_reference(q_values.data() + row * q_width, ks, vs, s.old_tokens + i + 1,
                                c.heads, c.kv_heads, c.head_dim, scale, c.window);
        expected.insert(expected.end(), one.begin(), one.end());
      }
    }
    EXPECT_LE(nmse(out.read(), expected), kFloatBar);
    out.expect_guards();
  }
};

TEST_P(AttentionParityTest, PrefillMatchesDoublePrecision) {
  for (const DType type : {DType::kF32, DType::kF16}) {
    for (const int32_t rows : {1, 2, 3, 7, 17, 33, 150}) check({.type = type}, {{0, rows}});
    check({.heads = 2, .kv_heads = 1, .type = type}, {{0, 600}});
  }
}

TEST_P(AttentionParityTest, DecodeMatchesDoublePrecision) {
  for (const DType type : {DType::kF32, DType::kF16}) {
    for (const int32_t old_tokens : {15, 16, 255, 256, 257, 1000}) {
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
  check({.heads = 3, .kv_heads = 1, .head_dim = 20, .type = DType::kF32}, {{300, 40}});
}

TEST_P(AttentionParityTest, WindowHidesWhatIsTooFarBack) {
  for (const int window : {1, 2, 16, 100, 256, 300}) {
    check({.window = window}, {{0, 70}});
    check({.window = window}, {{700, 1}});
    check({.window = window, .type = DType::kF32}, {{500, 40}});
  }
}

TEST_P(AttentionParityTest, MixesPrefillAndDecodeInOneStep) {
  check({.heads = 9, .kv_heads = 3}, {{0, 50}, {300, 1}, {17, 1}, {256, 20}, {0, 1}, {511, 2}});
}

TEST_P(AttentionParityTest, LargeScoresStayFinite) {
  check({.type = DType::kF32, .deviation = 30}, {{300, 20}});
  check({.type = DType::kF32, .deviation = 1e6F}, {{300, 3}});
  check({.type = DType::kF32, .deviation = 1e-6F}, {{300, 3}});
}

TEST_P(AttentionParityTest, AppendWritesItsOwnSlotsOnly) {
  for (const DType type : {DType::kF32, DType::kF16}) {
    PagedKv kv(device_, type, 2, 24, 8);
    const auto table = kv.take_blocks(40);
    const auto k = random_floats(5 * 48, 1), v = random_floats(5 * 48, 2);
    const Matrix keys(device_, 5, 48, k), values(device_, 5, 48, v);
    const SequenceSpan span{0, 5, 14, table};
    device_.ops().kv_append(keys.view(), values.view(), kv.view(), {&span, 1});
    const int64_t element = row_bytes(type, 1);
    std::vector<std::byte> plane(static_cast<size_t>(kv.view().block_bytes() * 8));
    int64_t written = 0;
    device_.download(plane.data(), kv.view().v, plane.size());
    for (size_t i = 0; i < plane.size(); i += static_cast<size_t>(element)) {
      for (int64_t b = 0; b < element; ++b) {
        if (plane[i + static_cast<size_t>(b)] != std::byte{0xff}) {
          ++written;
          break;
        }
      }
    }
    EXPECT_EQ(written, 5 * 48);
    const auto stored = as_stored(type, v);
    for (int64_t i = 0; i < 5; ++i) {
      for (int64_t head = 0; head < 2; ++head) {
        const int64_t slot =
            (table[static_cast<size_t>((14 + i) / 16)] * 2 + head) * 16 + (14 + i) % 16;
        for (int64_t c = 0; c < 24; ++c) {
          float value = 0;
          dequantize_reference(type, plane.data() + (slot * 24 + c) * element, &value, 1);
          ASSERT_EQ(value, stored[static_cast<size_t>(i * 48 + head * 24 + c)]);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, AttentionParityTest, testing::ValuesIn(device_kinds()),
                         kind_name);

}  // namespace
}  // namespace spillway::parity
