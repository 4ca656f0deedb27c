// SPDX-License-Identifier: Apache-2.0
// Non-owning views of matrices in some memory: what ops take and return.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "tensor/dtype.h"

namespace spillway {

// A stored, read-only matrix [rows, cols], row-major: rows are output features, so a range of rows
// is one contiguous range of bytes and can be cut out, moved and computed by itself. A vector (norm
// weight, bias) is [1, n].
struct WeightView {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;

  bool empty() const { return data == nullptr; }
  int64_t row_bytes() const { return spillway::row_bytes(dtype, cols); }
  int64_t bytes() const { return rows * row_bytes(); }
  const std::byte* row(int64_t i) const { return data + i * row_bytes(); }
  WeightView slice(int64_t first, int64_t count) const {
    SPW_ASSERT(first >= 0 && count >= 0 && first + count <= rows);
    return {dtype, count, cols, row(first)};
  }
};

// Activations [rows, cols] of plain elements (F32 on the CPU), rows `stride` elements apart, so
// that a range of columns of a wider buffer is a view too.
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
  // Row `i` as floats; only for F32 in memory the host can read.
  float* f32(int64_t i = 0) const { return reinterpret_cast<float*>(data) + i * stride; }
};

}  // namespace spillway
