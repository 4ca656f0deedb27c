// SPDX-License-Identifier: Apache-2.0
#include "tensor/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace spillway {
namespace {

TEST(HalfTest, RoundTripsEveryBitPatternThatIsNotNan) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Half half{static_cast<uint16_t>(bits)};
    const float value = to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_half(value))));
    } else {
      EXPECT_EQ(to_half(value).bits, half.bits) << bits;
    }
  }
}

TEST(HalfTest, RoundsToNearestEvenAtEveryBoundary) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = to_float(Half{static_cast<uint16_t>(bits)});
    const double high = to_float(Half{static_cast<uint16_t>(bits + 1)});
    const auto middle = static_cast<float>((low + high) / 2);
    EXPECT_EQ(to_half(middle).bits, bits % 2 == 0 ? bits : bits + 1) << bits;
    EXPECT_EQ(to_half(std::nextafter(middle, 1e9F)).bits, bits + 1) << bits;
    EXPECT_EQ(to_half(std::nextafter(middle, -1.0F)).bits, bits) << bits;
  }
  EXPECT_EQ(to_half(65520.0F).bits, 0x7c00);
  EXPECT_EQ(to_half(65519.9F).bits, 0x7bff);
  EXPECT_EQ(to_half(-std::numeric_limits<float>::infinity()).bits, 0xfc00);
}

TEST(HalfTest, RoundsBFloat16ToNearestEven) {
  EXPECT_EQ(to_bfloat16(1.0F).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808000U)).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f818000U)).bits, 0x3f82);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3f808001U)).bits, 0x3f81);
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7f800001U)))));
  EXPECT_TRUE(std::isinf(to_float(to_bfloat16(std::numeric_limits<float>::max()))));
}

}  // namespace
}  // namespace spillway
