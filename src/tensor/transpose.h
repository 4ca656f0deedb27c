// SPDX-License-Identifier: Apache-2.0
// Transposes matrices that are stored with inputs and outputs exchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway {

// Copies `rows` columns of `stored` [cols, stored_columns], from column `first` on, into the rows
// of `out` [rows, cols]. Elements have `element_bytes` (2 or 4) bytes.
void transpose_columns(std::span<const std::byte> stored, int64_t stored_columns, int64_t first,
                       int64_t rows, int64_t cols, int64_t element_bytes, std::byte* out);

}  // namespace spillway
