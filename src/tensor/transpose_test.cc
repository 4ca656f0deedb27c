// SPDX-License-Identifier: Apache-2.0
#include "tensor/transpose.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace spillway {
namespace {

template <class T>
void expect_columns_as_rows(int64_t cols, int64_t stored_columns, int64_t first, int64_t rows) {
  std::vector<T> stored(static_cast<size_t>(cols * stored_columns));
  std::iota(stored.begin(), stored.end(), T{1});
  std::vector<T> out(static_cast<size_t>(rows * cols));
  transpose_columns(std::as_bytes(std::span(stored)), stored_columns, first, rows, cols,
                    static_cast<int64_t>(sizeof(T)), reinterpret_cast<std::byte*>(out.data()));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      ASSERT_EQ(out[static_cast<size_t>(r * cols + c)],
                stored[static_cast<size_t>(c * stored_columns + first + r)]);
    }
  }
}

TEST(TransposeTest, MakesRowsOfColumns) {
  expect_columns_as_rows<uint32_t>(7, 5, 0, 5);
  expect_columns_as_rows<uint32_t>(70, 129, 64, 65);
  expect_columns_as_rows<uint16_t>(33, 40, 3, 31);
  expect_columns_as_rows<uint16_t>(1, 9, 8, 1);
}

}  // namespace
}  // namespace spillway
