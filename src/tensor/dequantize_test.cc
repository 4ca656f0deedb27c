// SPDX-License-Identifier: Apache-2.0
#include "tensor/dequantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/quant_blocks.h"

namespace spillway {
namespace {

template <class Block>
std::vector<float> decode_one(DType type, const Block& block) {
  std::vector<float> out(Block::kElements);
  dequantize_reference(type, reinterpret_cast<const std::byte*>(&block), out.data(),
                       Block::kElements);
  return out;
}

TEST(DequantizeTest, ReadsNibblesLowHalfFirst) {
  BlockQ4_0 block{to_half(0.5F), {}};
  block.nibbles[3] = 0xF1;  // element 3 = 1, element 19 = 15
  const auto out = decode_one(DType::kQ4_0, block);
  EXPECT_EQ(out[3], 0.5F * (1 - 8));
  EXPECT_EQ(out[19], 0.5F * (15 - 8));
  EXPECT_EQ(out[0], -4.0F);
}

TEST(DequantizeTest, AddsTheFifthBitAndTheMinimum) {
  BlockQ5_1 block{to_half(2.0F), to_half(-1.0F), {}, {}};
  block.high[17 / 8] = 1 << (17 % 8);
  block.nibbles[1] = 0x30;  // element 17: 3 + 16
  const auto out = decode_one(DType::kQ5_1, block);
  EXPECT_EQ(out[17], 2.0F * 19 - 1);
  EXPECT_EQ(out[1], -1.0F);
}

TEST(DequantizeTest, SharesOneScaleAndMinimumAmong64ElementsOfG4) {
  BlockG4 block{to_half(0.5F), to_half(-2.0F), {}};
  block.nibbles[16 + 5] = 0xC3;  // element 37 = 3, element 53 = 12
  const auto out = decode_one(DType::kG4, block);
  EXPECT_EQ(out[37], 0.5F * 3 - 2);
  EXPECT_EQ(out[53], 0.5F * 12 - 2);
  EXPECT_EQ(out[5], -2.0F);
}

TEST(DequantizeTest, UnpacksSixBitScalesOfTheKTypes) {
  BlockQ4_K block{};
  block.d = to_half(1.0F);
  block.dmin = to_half(1.0F);
  // scale 5 = 0b10'0110 = 38, minimum 5 = 0b01'1001 = 25
  block.scales[9] = 0x96;
  block.scales[1] = 2 << 6;
  block.scales[5] = 1 << 6;
  block.q[2 * 32 + 7] = 0x90;  // element 5 * 32 + 7 has q = 9
  EXPECT_EQ(decode_one(DType::kQ4_K, block)[5 * 32 + 7], 38.0F * 9 - 25);
}

TEST(DequantizeTest, PlacesTheHighBitsOfQ3KAndQ6K) {
  BlockQ3_K q3{};
  q3.d = to_half(1.0F);
  q3.scales[4] = 0x50;    // low nibble of scale 12
  q3.scales[8] = 0x80;    // bits 4-5 of scale 12 (8 + 12 % 4, bit 6): 2
  q3.high[9] = 1 << 6;    // element 6 * 32 + 9 = 201, sub-block 12
  q3.q[32 + 9] = 3 << 4;  // its low bits: half 1, 201 % 128 = 73, 73 / 32 = 2
  EXPECT_EQ(decode_one(DType::kQ3_K, q3)[201], (37.0F - 32) * (7 - 4));

  BlockQ6_K q6{};
  q6.d = to_half(0.25F);
  q6.scales[13] = -3;
  q6.low[64 + (215 - 128 - 64)] = 0xA0;  // element 215: half 1, j = 87, high nibble
  q6.high[32 + 87 % 32] = 3 << 4;
  EXPECT_EQ(decode_one(DType::kQ6_K, q6)[215], 0.25F * -3 * (0x3A - 32));
}

class QuantizeRoundTripTest : public testing::TestWithParam<DType> {};

TEST_P(QuantizeRoundTripTest, StaysWithinHalfAStep) {
  const DType type = GetParam();
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(32 * 64);
  for (auto& value : values) value = normal(random);
  std::vector<std::byte> stored(
      static_cast<size_t>(row_bytes(type, static_cast<int64_t>(values.size()))));
  quantize_reference(type, values.data(), stored.data(), static_cast<int64_t>(values.size()));
  std::vector<float> back(values.size());
  dequantize_reference(type, stored.data(), back.data(), static_cast<int64_t>(values.size()));
  const std::vector<std::pair<DType, float>> tolerance{
      {DType::kF32, 0},      {DType::kF16, 2e-3F},  {DType::kBF16, 2e-2F},
      {DType::kQ8_0, 0.02F}, {DType::kQ4_0, 0.6F},  {DType::kQ4_1, 0.3F},
      {DType::kQ5_0, 0.3F},  {DType::kQ5_1, 0.15F}, {DType::kG4, 0.35F}};
  for (const auto& [t, bound] : tolerance) {
    if (t != type) continue;
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], back[i], bound);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, QuantizeRoundTripTest,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0,
                                         DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                         DType::kG4),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

}  // namespace
}  // namespace spillway
