// SPDX-License-Identifier: Apache-2.0
// Checks that every tensor from a file goes through, whatever the format.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tensor/dtype.h"

namespace spillway {

// Bytes of a tensor of `shape` (outermost first). `prefix` starts the messages: "m.gguf: tensor
// 'x': ". Throws kInvalidArgument for a dimension outside [1, 2^31), a row that is not whole
// blocks, a product that wraps.
uint64_t checked_tensor_bytes(const std::string& prefix, DType dtype,
                              std::span<const int64_t> shape);

// Throws kInvalidArgument unless [offset, offset + bytes) lies inside the file.
void check_extent(const std::string& prefix, uint64_t offset, uint64_t bytes, uint64_t file_bytes);

}  // namespace spillway
