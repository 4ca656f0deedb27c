// SPDX-License-Identifier: Apache-2.0
// Non-owning views of matrices in memory, which ops take and return.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "tensor/dtype.h"

namespace spillway {

enum class WeightLayout : uint8_t {
  kRows,      // row after row, as in the file
  kGroups16,  // groups of 16 rows, interleaved for integer matrix instructions (packed_layout.h)
};
inline constexpr int64_t kGroupRows = 16;

// A stored, read-only matrix [rows, cols], row-major. Rows are output features, so a range of rows
// is one contiguous range of bytes that can be sliced, moved and computed by itself. A vector (norm
// weight, bias) is [1, n]. A packed group takes the bytes of its 16 rows, so a range of whole
// groups lies where its rows would; rows after the last whole group stay as in the file.
//
// A slice remembers how many rows the whole matrix has and where it begins in it. Kernels and the
// split of sums are chosen by those, so that a row's result does not depend on what computes the
// other rows.
struct WeightView {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;
  WeightLayout layout = WeightLayout::kRows;
  int64_t sliced_from = 0;  // rows of the matrix that this is a slice of; 0: it is whole
  int64_t sliced_at = 0;    // index of its first row in that matrix

  bool empty() const { return data == nullptr; }
  int64_t whole_rows() const { return sliced_from > 0 ? sliced_from : rows; }
  int64_t row_bytes() const { return spillway::row_bytes(dtype, cols); }
  int64_t bytes() const { return rows * row_bytes(); }
  // Returns how many rows, from the first on, are in packed groups.
  int64_t grouped_rows() const {
    return layout == WeightLayout::kGroups16 ? rows / kGroupRows * kGroupRows : 0;
  }
  // Returns where row i begins. In a packed group only the first row has a place of its own.
  const std::byte* row(int64_t i) const { return data + i * row_bytes(); }
  // Returns a range of rows. In a packed matrix it must consist of whole groups, except that it may
  // include the rows after the last one.
  WeightView slice(int64_t first, int64_t count) const {
    SPW_ASSERT(first >= 0 && count >= 0 && first + count <= rows);
    SPW_ASSERT(layout == WeightLayout::kRows ||
               (first % kGroupRows == 0 && (count % kGroupRows == 0 || first + count == rows)));
    return {dtype, count, cols, row(first), layout, whole_rows(), sliced_at + first};
  }
};

// Activations [rows, cols] of plain elements (F32 on the CPU), with rows `stride` elements apart,
// so that a range of columns of a wider buffer is a view, too.
struct Activations {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  std::byte* data = nullptr;

  bool empty() const { return data == nullptr; }
  Activations columns(int64_t first, int64_t count) const {
    SPW_ASSERT(first >= 0 && count >= 0 && first + count <= cols);
    return {dtype, rows, count, stride, data + spillway::row_bytes(dtype, first)};
  }
  Activations row_range(int64_t first, int64_t count) const {
    SPW_ASSERT(first >= 0 && count >= 0 && first + count <= rows);
    return {dtype, count, cols, stride, data + spillway::row_bytes(dtype, first * stride)};
  }
  // Returns row `i` as floats; only for F32 in memory that the host can read.
  float* f32(int64_t i = 0) const { return reinterpret_cast<float*>(data) + i * stride; }
};

}  // namespace spillway
