// SPDX-License-Identifier: Apache-2.0
// Quantizes activations to 8-bit integers, in the order the integer kernels of linear read them.
#pragma once

#include <cstdint>

#include "cpu/linear/linear_int8_args.h"
#include "tensor/tensor_view.h"

namespace spillway {

// The output of quantize_pairs: the arrays of these names in Int8Args, for all pairs.
struct QuantizedPairs {
  int8_t* q;
  float *d, *m;
  Int8Super* super;  // not used by forms without multipliers
};

// Quantizes blocks of 32 columns: q = x / d to the nearest, d = max |x| / 127 (119 if codes are
// skewed). Forms with multipliers have blocks of 256 columns whose step is the largest of these d,
// divided by form.multipliers; each 32 columns have the least multiple of it that is not below
// their d. Blocks below 2^-100 count as zero (1 / d would overflow); a NaN or infinity in a block
// makes the row's results NaN.
//
// Takes tokens [2 first_pair, 2 last_pair) of x [tokens, k]; a last odd token is its own partner.
void quantize_pairs(const Activations& x, const Int8Form& form, int64_t first_pair,
                    int64_t last_pair, const QuantizedPairs& to);

}  // namespace spillway
