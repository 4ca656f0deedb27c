// SPDX-License-Identifier: Apache-2.0
// Describes matrices for Hopper's tensor copies (async_copy.cuh).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace spillway::cuda {

// Returns whether the GPU and its driver support tensor maps.
bool has_tensor_maps();

// A matrix of 16-bit elements, copied in boxes of `box_rows` rows (up to 256) by 64 columns. In
// shared memory a row of a box has 128 bytes, with 16-byte chunk c of row r at place c ^ (r % 8).
// Elements outside the matrix are zero. `data` and the rows must be aligned to 16 bytes.
struct TensorMapShape {
  DType dtype = DType::kF16;
  const std::byte* data = nullptr;
  int64_t rows = 0, cols = 0;
  int64_t stride = 0;  // elements
  int box_rows = 0;
};
CUtensorMap make_tensor_map(const TensorMapShape& shape);

}  // namespace spillway::cuda
