// SPDX-License-Identifier: Apache-2.0
// Matrix products of many tokens with bfloat16 matrix instructions: activations and weights are
// rounded to 8 bits of significand (NMSE about 3e-6), and products are added up in F32.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"
#include "cpu/linear/linear_args.h"
#include "cpu/linear/linear_bf16_args.h"
#include "cpu/workspace.h"
#include "tensor/tensor_view.h"

namespace spillway {

// Returns the best kernels that this processor has; null if it has none.
const Bf16Kernels* try_bf16_kernels();
// Uses these kernels instead, for benchmarks that compare blockings; null restores the best. Not
// thread-safe; do not call it while a Workspace holds memory reserved for the other kernels.
void use_bf16_kernels(const Bf16Kernels* kernels);

namespace cpu {

// Returns whether linear_bf16 can multiply with this matrix here.
bool has_bf16_product(const WeightView& w);

// Return the floats of scratch memory needed for the activations, which is shared, and for each
// worker.
size_t bf16_shared_floats(int64_t tokens, int64_t k);
size_t bf16_worker_floats(const WeightView& w);

// Computes a.out (+)= x * w^T + a.bias for rows [0, rows) of w (whole groups if it is packed); a.w
// and a.x are not used. k is cut at multiples of the kernels' depth, the same for every row and
// token. The sums of the cuts are added in ascending order, or, in kernels that keep sums, each cut
// starts from the sums of the one before.
void linear_bf16(ThreadPool& pool, const Workspace& workspace, float* shared, const WeightView& w,
                 int64_t rows, const Activations& x, const LinearArgs& a);

}  // namespace cpu
}  // namespace spillway
