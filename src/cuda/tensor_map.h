// SPDX-License-Identifier: Apache-2.0
// Descriptions of matrices for Hopper's tensor copies (async_copy.cuh).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace spillway::cuda {

// Whether the GPU and its driver know them.
bool has_tensor_maps();

// A matrix of 16-bit elements, of which boxes of `box_rows` rows (up to 256) and 64 columns are
// copied: rows of 128 bytes in shared memory, the 16-byte piece c of row r at place c ^ (r % 8).
// What lies outside the matrix is zero. data and rows are aligned to 16 bytes.
struct TensorMapShape {
  DType dtype = DType::kF16;
  const std::byte* data = nullptr;
  int64_t rows = 0, cols = 0;
  int64_t stride = 0;  // elements
  int box_rows = 0;
};
CUtensorMap make_tensor_map(const TensorMapShape& shape);

}  // namespace spillway::cuda
