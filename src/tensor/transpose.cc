// SPDX-License-Identifier: Apache-2.0
#include "tensor/transpose.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace spillway {
namespace {

// Both sides of a tile fit the first-level cache.
constexpr int64_t kTile = 32;

template <class T>
void transpose(const std::byte* stored, int64_t stored_columns, int64_t first, int64_t rows,
               int64_t cols, std::byte* out) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  for (int64_t row = 0; row < rows; row += kTile) {
    for (int64_t col = 0; col < cols; col += kTile) {
      for (int64_t r = row; r < std::min(rows, row + kTile); ++r) {
        for (int64_t c = col; c < std::min(cols, col + kTile); ++c) {
          std::memcpy(out + (r * cols + c) * kBytes,
                      stored + (c * stored_columns + first + r) * kBytes, sizeof(T));
        }
      }
    }
  }
}

}  // namespace

void transpose_columns(std::span<const std::byte> stored, int64_t stored_columns, int64_t first,
                       int64_t rows, int64_t cols, int64_t element_bytes, std::byte* out) {
  SPW_ASSERT(first >= 0 && first + rows <= stored_columns);
  SPW_ASSERT(static_cast<int64_t>(stored.size()) == cols * stored_columns * element_bytes);
  if (element_bytes == 2) {
    transpose<uint16_t>(stored.data(), stored_columns, first, rows, cols, out);
  } else {
    SPW_ASSERT(element_bytes == 4);
    transpose<uint32_t>(stored.data(), stored_columns, first, rows, cols, out);
  }
}

}  // namespace spillway
