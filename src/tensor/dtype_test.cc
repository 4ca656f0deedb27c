// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace spillway {
namespace {

TEST(DTypeTest, RoundTripsNamesIgnoringCase) {
  for (const DType type : kAllDTypes) EXPECT_EQ(try_dtype_from_name(dtype_name(type)), type);
  EXPECT_EQ(try_dtype_from_name("q4_k"), DType::kQ4_K);
  EXPECT_EQ(try_dtype_from_name("q9_9"), std::nullopt);
  EXPECT_EQ(try_dtype_from_name(""), std::nullopt);
}

TEST(DTypeTest, CountsBytesInWholeBlocks) {
  EXPECT_EQ(row_bytes(DType::kF16, 7), 14);
  EXPECT_EQ(row_bytes(DType::kQ4_1, 64), 40);
  EXPECT_EQ(row_bytes(DType::kQ6_K, 512), 420);
  EXPECT_THROW(row_bytes(DType::kQ4_1, 33), Error);
}

}  // namespace
}  // namespace spillway
