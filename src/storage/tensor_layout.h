// SPDX-License-Identifier: Apache-2.0
// Checks that apply to every tensor of a file, whatever its format.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace spillway {

// Returns the bytes of a tensor of `shape` (outermost first). Messages start with `prefix`:
// "m.gguf: tensor 'x': ". Throws kInvalidArgument for a dimension outside [1, 2^31), a row that is
// not whole blocks, or a product that overflows.
uint64_t checked_tensor_bytes(const std::string& prefix, DType dtype,
                              std::span<const int64_t> shape);

// Throws kInvalidArgument unless [offset, offset + bytes) lies inside the file.
void check_extent(const std::string& prefix, uint64_t offset, uint64_t bytes, uint64_t file_bytes);

// Returns the type that a Hugging Face folder calls F32, F16 or BF16, and nullopt for another name.
std::optional<DType> try_plain_dtype(std::string_view name);

}  // namespace spillway
