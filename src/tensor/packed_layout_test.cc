// SPDX-License-Identifier: Apache-2.0
#include "tensor/packed_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tensor/quant_blocks.h"

namespace spillway {
namespace {

std::vector<std::byte> random_bytes(int64_t count) {
  std::mt19937 random(11);
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class PackedLayoutTest : public testing::TestWithParam<DType> {};

TEST_P(PackedLayoutTest, EveryBitComesBackWhereItWas) {
  const DType type = GetParam();
  if (!can_pack(type)) GTEST_SKIP() << "stays in the file's layout";
  const int64_t cols = 768, rows = 48, bytes = row_bytes(type, cols);
  const auto stored = random_bytes(rows * bytes + 1);  // any bits, at an odd address
  std::vector<std::byte> packed(stored.size(), std::byte{0x77}), in_place = stored;
  pack_groups(type, stored.data() + 1, packed.data() + 1, rows / 16, cols);
  pack_groups(type, in_place.data() + 1, in_place.data() + 1, rows / 16, cols);
  EXPECT_EQ(std::memcmp(in_place.data() + 1, packed.data() + 1, packed.size() - 1), 0);
  const std::vector<std::byte> aligned(stored.begin() + 1, stored.end());
  pack_groups(type, aligned.data(), in_place.data(), rows / 16, cols);
  EXPECT_EQ(
      std::memcmp(in_place.data(), packed.data() + 1, static_cast<size_t>(rows / 16 * 16 * bytes)),
      0);
  std::vector<std::byte> row(static_cast<size_t>(bytes) + 1, std::byte{0x55});
  for (int64_t i = 0; i < rows; ++i) {
    unpack_row(type, packed.data() + 1 + i / 16 * 16 * bytes, i % 16, row.data(), cols);
    ASSERT_EQ(std::memcmp(row.data(), stored.data() + 1 + i * bytes, row.size() - 1), 0) << i;
    ASSERT_EQ(row.back(), std::byte{0x55});
  }
}

INSTANTIATE_TEST_SUITE_P(Types, PackedLayoutTest, testing::ValuesIn(kAllDTypes),
                         [](const auto& suite) { return std::string(dtype_name(suite.param)); });

TEST(PackedTypesTest, AreAllThatAreQuantized) {
  for (const DType type : kAllDTypes) EXPECT_EQ(can_pack(type), is_quantized(type));
}

// Checks the documented layout for one element in the middle.
TEST(PackedLayoutMapTest, Q4_0PutsAColumnWhereTheHeaderSays) {
  BlockQ4_0 rows[16] = {};
  rows[5].nibbles[3 + 8] = 0x0a << 4;  // row 5, column 16 + 8 + 3
  rows[5].d = to_half(2.5F);
  uint8_t packed[sizeof(rows)];
  pack_groups(DType::kQ4_0, reinterpret_cast<const std::byte*>(rows),
              reinterpret_cast<std::byte*>(packed), 1, 32);
  Half d;
  std::memcpy(&d, packed + 2 * 5, 2);
  EXPECT_EQ(to_float(d), 2.5F);
  // This is pair 2, half 1, second row, byte 3.
  EXPECT_EQ(packed[32 + (2 * 2 + 1) * 16 + 8 + 3], 0xa0);
}

TEST(PackedLayoutMapTest, Q2_KPutsAColumnWhereTheHeaderSays) {
  BlockQ2_K rows[16] = {};
  rows[5].q[32 + 27] = 3 << 2;  // row 5, column 128 + 32 + 27: sub-block 5 of 32, 11 of 16
  rows[5].scales[11] = 0xa7;
  rows[5].dmin = to_half(2.5F);
  uint8_t packed[sizeof(rows)];
  pack_groups(DType::kQ2_K, reinterpret_cast<const std::byte*>(rows),
              reinterpret_cast<std::byte*>(packed), 1, 256);
  Half dmin;
  std::memcpy(&dmin, packed + 32 + 2 * 5, 2);
  EXPECT_EQ(to_float(dmin), 2.5F);
  EXPECT_EQ(packed[64 + 11 * 16 + 5], 0xa7);
  // This is pair 2, second row, byte 27 % 8; column 27 = 16 + 8 * 1 + 3 has bits 6 and 7.
  EXPECT_EQ(packed[64 + 256 + 5 * 128 + 2 * 16 + 8 + 3], 0xc0);
}

}  // namespace
}  // namespace spillway
