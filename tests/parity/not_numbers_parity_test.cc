// SPDX-License-Identifier: Apache-2.0
// Values that are not numbers, or that the KV cache cannot hold, are not numbers after attention
// either: they never turn into numbers, and other sequences of the step are not affected.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "tests/parity/attention_step.h"
#include "tests/parity/parity_device.h"

namespace spillway::parity {
namespace {

using Case = AttentionCase;
using Lengths = std::vector<std::pair<int32_t, int32_t>>;
using Sequence = AttentionStep::Sequence;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum class Where { kQuery, kKey, kValue };
struct Bad {
  Where where;
  float value;
};
constexpr Bad kBad[] = {
    {Where::kQuery, kNan},       {Where::kQuery, kInfinity}, {Where::kQuery, -kInfinity},
    {Where::kKey, kNan},         {Where::kKey, kInfinity},   {Where::kKey, -kInfinity},
    {Where::kKey, 3e5F},         {Where::kKey, -3e9F},       {Where::kValue, kNan},
    {Where::kValue, -kInfinity}, {Where::kValue, 3e5F},      {Where::kValue, 3e9F}};

std::vector<float> rows_of(const std::vector<float>& all, int64_t width, int64_t first,
                           int64_t count) {
  return {all.begin() + first * width, all.begin() + (first + count) * width};
}

class NotNumbersTest : public ParityTest {
 protected:
  // One element of the second of three sequences is `bad`: in its last row's first query head, or
  // in the last kv head of token `token`.
  void check(const Case& c, const Lengths& lengths, const std::vector<float>& good, const Bad& bad,
             int32_t token) {
    SCOPED_TRACE(describe(c, lengths) << ", " << bad.value << " in the "
                                      << (bad.where == Where::kQuery ? "query"
                                          : bad.where == Where::kKey ? "key"
                                                                     : "value")
                                      << " of token " << token);
    const auto& [old_tokens, rows] = lengths[1];
    const int64_t q_width = int64_t{c.heads} * c.head_dim, width = int64_t{c.kv_heads} * c.head_dim;
    const int64_t first = lengths[0].second, last = first + rows - 1;
    std::vector<float> row;  // the row that is appended
    const auto change = [&](std::vector<float>& q, std::vector<Sequence>& sequences) {
      if (bad.where == Where::kQuery) {
        q[static_cast<size_t>(last * q_width + c.head_dim / 2)] = bad.value;
        return;
      }
      std::vector<float>& x = bad.where == Where::kKey ? sequences[1].k : sequences[1].v;
      const int64_t head = token * width + width - c.head_dim;
      x[static_cast<size_t>(head + c.head_dim / 2)] = bad.value;
      row.assign(x.begin() + head, x.begin() + head + c.head_dim);
    };
    AttentionStep step(device_, c, lengths, change);
    const std::vector<float> actual = step.run();

    EXPECT_TRUE(same_bits(rows_of(actual, q_width, 0, first), rows_of(good, q_width, 0, first)))
        << "the sequence before it";
    EXPECT_TRUE(same_bits(rows_of(actual, q_width, last + 1, lengths[2].second),
                          rows_of(good, q_width, last + 1, lengths[2].second)))
        << "the sequence behind it";
    check_fault(c, bad, row);
    // Check the heads that read the element, in rows that see it.
    const bool is_query = bad.where == Where::kQuery;
    const KvPart part = bad.where == Where::kKey ? KvPart::kKeys : KvPart::kValues;
    const bool held = !is_query && all_numbers(as_stored(c.type, part, c.head_dim, row));
    const int group = c.heads / c.kv_heads;
    for (int64_t r = is_query ? rows - 1 : std::max(0, token - old_tokens); r < rows; ++r) {
      const int64_t position = old_tokens + r;
      if (!is_query && c.window > 0 && token + c.window <= position) continue;
      for (int h = is_query ? 0 : c.heads - group; h < (is_query ? 1 : c.heads); ++h) {
        const auto head = rows_of(actual, c.head_dim, (first + r) * c.heads + h, 1);
        const auto wrong =
            std::count_if(head.begin(), head.end(), [](float x) { return !std::isfinite(x); });
        if (held) {
          ASSERT_EQ(wrong, 0) << "row " << r << ", head " << h;
        } else if (bad.where == Where::kValue) {
          ASSERT_GE(wrong, 1) << "row " << r << ", head " << h;
        } else {
          ASSERT_EQ(wrong, c.head_dim) << "row " << r << ", head " << h;
        }
      }
    }
  }

  void check_all(const Case& c, const Lengths& lengths) {
    const std::vector<float> good = AttentionStep(device_, c, lengths).run();
    EXPECT_FALSE(device_.ops().take_kv_fault().has_value());
    for (const Bad& bad : kBad) {
      const auto& [old_tokens, rows] = lengths[1];
      const bool is_value = bad.where == Where::kValue;
      // With a share of the keys, values that are not chosen have no part in the result.
      if (c.top_k > 0 && is_value) continue;
      check(c, lengths, good, bad, old_tokens + rows - 1);
      if (bad.where != Where::kQuery && old_tokens > 2)
        check(c, lengths, good, bad, old_tokens / 2);
    }
  }

  static bool all_numbers(const std::vector<float>& x) {
    return std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); });
  }

  // A number that does not fit is reported with its layer; a value that is no number is not
  // reported.
  void check_fault(const Case& c, const Bad& bad, const std::vector<float>& row) {
    const std::optional<KvFault> fault = device_.ops().take_kv_fault();
    const KvPart part = bad.where == Where::kKey ? KvPart::kKeys : KvPart::kValues;
    const bool expected = bad.where != Where::kQuery && std::isfinite(bad.value) &&
                          !all_numbers(as_stored(c.type, part, c.head_dim, row));
    ASSERT_EQ(fault.has_value(), expected);
    if (!expected) return;
    EXPECT_EQ(fault->layer, PagedKv::kLayer);
    EXPECT_EQ(fault->part, part);
    EXPECT_FALSE(device_.ops().take_kv_fault().has_value()) << "taken twice";
  }
};

TEST_P(NotNumbersTest, DecodeOfEveryTypeKeepsThem) {
  for (const bool deterministic : {false, true}) {
    device_.ops().set_deterministic(deterministic);
    for (const KvType type : kAllKvTypes) {
      for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {4, 2}, {8, 1}}) {
        const Case c{.heads = heads, .kv_heads = kv_heads, .type = type};
        check_all(c, {{40, 1}, {300, 1}, {16, 1}});
      }
    }
  }
}

// A long context has many partitions, which are computed separately and merged.
TEST_P(NotNumbersTest, LongContextsKeepThem) {
  for (const KvType type : kAllKvTypes) {
    const Case c{.heads = 4, .kv_heads = 1, .head_dim = 128, .type = type};
    check_all(c, {{300, 1}, {1100, 1}, {16, 1}});
  }
}

TEST_P(NotNumbersTest, HeadsOfEverySizeKeepThem) {
  for (const KvType type : kAllKvTypes) {
    for (const int head_dim : {8, 24, 80, 256}) {
      const Case c{.heads = 4, .kv_heads = 2, .head_dim = head_dim, .type = type};
      check_all(c, {{5, 1}, {70, 1}, {1, 1}});
      check_all(c, {{5, 9}, {30, 33}, {1, 1}});
    }
  }
}

TEST_P(NotNumbersTest, PrefillOfEveryTypeKeepsThem) {
  for (const bool deterministic : {false, true}) {
    device_.ops().set_deterministic(deterministic);
    for (const KvType type : kAllKvTypes) {
      const Case c{.heads = 6, .kv_heads = 2, .type = type};
      check_all(c, {{0, 20}, {0, 70}, {16, 20}});
      check_all(c, {{3, 1}, {250, 40}, {0, 9}});
    }
  }
}

TEST_P(NotNumbersTest, WindowsKeepThem) {
  for (const KvType type : kAllKvTypes) {
    const Case c{.heads = 4, .kv_heads = 2, .window = 40, .type = type};
    check_all(c, {{40, 1}, {300, 1}, {16, 1}});
    check_all(c, {{0, 20}, {100, 60}, {16, 40}});
  }
}

TEST_P(NotNumbersTest, AttentionToAShareOfTheKeysKeepsThem) {
  for (const KvType type : kAllKvTypes) {
    check_all({.heads = 4, .kv_heads = 2, .type = type, .top_k = 0.1F},
              {{40, 1}, {300, 1}, {16, 1}});
  }
}

// A linear layer of any type passes on a value that is not a number, whatever its bits are.
class NotNumbersLinearTest : public testing::TestWithParam<StoredCase> {
 protected:
  TestDevice device_{std::get<0>(GetParam())};
};

TEST_P(NotNumbersLinearTest, LinearLayersKeepThem) {
  const auto& [kind, type, layout] = GetParam();
  constexpr int64_t kRows = 48, kCols = 512;
  const Weights w = random_weights(device_, type, kRows, kCols, 3, layout);
  for (const int64_t tokens : {1, 2, 3, 5, 9, 40}) {
    for (const uint32_t bits : {0x7fc00000U, 0xffffffffU, 0x7fffffffU, 0xff800000U}) {
      std::vector<float> x = random_floats(tokens * kCols, 1);
      const int64_t bad = tokens / 2;
      x[static_cast<size_t>(bad * kCols + 300)] = std::bit_cast<float>(bits);
      const Matrix in(device_, tokens, kCols, x), out(device_, tokens, kRows);
      device_.ops().linear(w.view(), {}, in.view(), out.view(), LinearMode::kStore);
      const std::vector<float> y = out.read();
      for (int64_t i = 0; i < tokens * kRows; ++i) {
        const bool finite = std::isfinite(y[static_cast<size_t>(i)]);
        ASSERT_EQ(finite, i / kRows != bad)
            << std::hex << bits << std::dec << ", " << tokens << " tokens, element " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, NotNumbersTest, testing::ValuesIn(device_kinds()), kind_name);
INSTANTIATE_TEST_SUITE_P(Stored, NotNumbersLinearTest, testing::ValuesIn(stored_cases()),
                         stored_case_name);

}  // namespace
}  // namespace spillway::parity
