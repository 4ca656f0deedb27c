// SPDX-License-Identifier: Apache-2.0
// Plain weights to the 4-bit groups of FlexGen (section 5), fast enough to be done while loading.
//
// Unlike the paper's, groups lie along the input dimension, so that a row is a whole number of
// groups and rows can be split between devices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace spillway {

// `count` values (whole groups of 64) to blocks of DType::kG4. Minimum and scale are rounded to F16
// first and the codes chosen for what they have become, so an element is off by at most half a step
// and the rounding of the group's ends. Groups that F16 cannot describe (a NaN, an infinity, a
// minimum or step beyond its range) become NaN as a whole, never something that looks right; the
// answer is then false. Thread-safe.
bool quantize_g4(const float* values, std::byte* out, int64_t count);

// The same from stored F32, F16 or BF16, at any alignment.
bool quantize_g4(DType from, const std::byte* stored, std::byte* out, int64_t count);

}  // namespace spillway
