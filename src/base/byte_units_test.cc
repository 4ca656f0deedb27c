// SPDX-License-Identifier: Apache-2.0
#include "base/byte_units.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(ByteUnitsTest, ReadsBinaryDecimalAndPlainNumbers) {
  EXPECT_EQ(try_parse_bytes("4096"), 4096);
  EXPECT_EQ(try_parse_bytes("16GiB"), int64_t{16} << 30);
  EXPECT_EQ(try_parse_bytes("16g"), int64_t{16} << 30);
  EXPECT_EQ(try_parse_bytes("1.5 GB"), 1'500'000'000);
  EXPECT_EQ(try_parse_bytes("0"), 0);
}

TEST(ByteUnitsTest, RefusesWhatIsNoByteCount) {
  for (const char* bad : {"", "GiB", "-1", "nan", "inf", "1e30", "5 parsecs", "0x10", "9e9TiB"}) {
    EXPECT_EQ(try_parse_bytes(bad), std::nullopt) << bad;
  }
}

TEST(ByteUnitsTest, FormatsWithThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(uint64_t{98362432}), "93.8 MiB");
}

}  // namespace
}  // namespace spillway
