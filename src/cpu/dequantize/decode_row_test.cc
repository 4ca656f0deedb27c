// SPDX-License-Identifier: Apache-2.0
#include "cpu/dequantize/decode_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/dequantize/stored_test_data.h"
#include "tensor/dequantize.h"

namespace spillway {
namespace {

class DecodeRowTest : public testing::TestWithParam<DType> {};

TEST_P(DecodeRowTest, IsBitEqualToTheReferenceAtAnyAlignment) {
  const DType type = GetParam();
  const int64_t count = 256 * 40;
  for (size_t shift = 0; shift < 8; ++shift) {
    const auto stored = awkward_blocks(type, count, static_cast<uint32_t>(shift));
    std::vector<std::byte> moved(stored.size() + shift);
    std::memcpy(moved.data() + shift, stored.data(), stored.size());
    std::vector<float> expected(count), actual(count, NAN), sum(count, 1.5F);
    dequantize_reference(type, stored.data(), expected.data(), count);
    decode_row(type, moved.data() + shift, actual.data(), count);
    ASSERT_EQ(std::memcmp(actual.data(), expected.data(), count * sizeof(float)), 0);
    decode_row_add(type, moved.data() + shift, sum.data(), count);
    for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(sum[i], 1.5F + expected[i]);
  }
}

TEST_P(DecodeRowTest, WritesNothingPastTheEnd) {
  const DType type = GetParam();
  const int64_t block = dtype_info(type).block_elements;
  for (int64_t blocks = 1; blocks < 40; ++blocks) {
    const int64_t count = blocks * block;
    const auto stored = awkward_blocks(type, count, 3);
    std::vector<float> out(static_cast<size_t>(count + 1), 7), expected(static_cast<size_t>(count));
    decode_row(type, stored.data(), out.data(), count);
    dequantize_reference(type, stored.data(), expected.data(), count);
    EXPECT_EQ(out.back(), 7);
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), expected.size() * sizeof(float)), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DecodeRowTest, testing::ValuesIn(kAllDTypes),
                         [](const auto& suite) { return std::string(dtype_name(suite.param)); });

TEST(DecodeRowHalfTest, ConvertsEveryHalfFloat) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  for (const DType type : {DType::kF16, DType::kBF16}) {
    std::vector<float> expected(65536), actual(65536);
    const auto* stored = reinterpret_cast<const std::byte*>(bits.data());
    dequantize_reference(type, stored, expected.data(), 65536);
    decode_row(type, stored, actual.data(), 65536);
    for (size_t i = 0; i < bits.size(); ++i) {
      if (std::isnan(expected[i])) {
        EXPECT_TRUE(std::isnan(actual[i])) << i;
      } else {
        EXPECT_EQ(std::memcmp(&actual[i], &expected[i], 4), 0) << i;
      }
    }
  }
}

}  // namespace
}  // namespace spillway
