// SPDX-License-Identifier: Apache-2.0
// Converts plain weights to the 4-bit groups of FlexGen (section 5), fast enough to do it while
// loading.
//
// Unlike in the paper, groups lie along the input dimension, so that a row is a whole number of
// groups and rows can be split between devices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace spillway {

// Converts `count` values (whole groups of 64) to blocks of DType::kG4. Minimum and scale are
// rounded to F16 before codes are chosen, so an element is off by at most half a step plus the
// rounding of the group's ends. A group that F16 cannot describe (because of a NaN, an infinity, or
// a minimum or step out of range) becomes NaN as a whole, so that it never looks valid, and the
// function returns false. Thread-safe.
bool quantize_g4(const float* values, std::byte* out, int64_t count);

// Does the same from stored F32, F16 or BF16 at any alignment.
bool quantize_g4(DType from, const std::byte* stored, std::byte* out, int64_t count);

}  // namespace spillway
