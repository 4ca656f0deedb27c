// SPDX-License-Identifier: Apache-2.0
// Matrix products in F32, of weights of any type as they are stored.
#pragma once

#include "cpu/linear/linear_args.h"
#include "tensor/dtype.h"

namespace spillway::cpu {

// Computes rows [begin, end) of a product, in the order that linear.h promises. `panel` has
// kPanelFloats.
void linear_f32(DType type, const LinearArgs& a, int64_t begin, int64_t end, float* panel);

}  // namespace spillway::cpu
