// SPDX-License-Identifier: Apache-2.0
// Matrix products of many tokens with bfloat16 matrix instructions: activations and weights are
// rounded to 8 bits of significand (NMSE about 3e-6), products are added up in F32.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"
#include "cpu/linear/linear_args.h"
#include "cpu/linear/linear_bf16_args.h"
#include "cpu/workspace.h"
#include "tensor/tensor_view.h"

namespace spillway {

// The best that this processor has; null where it has none.
const Bf16Kernels* try_bf16_kernels();
// Takes these instead, for benchmarks that compare blockings; null: the best again. Not
// thread-safe, and not while a Workspace holds what the others asked for.
void use_bf16_kernels(const Bf16Kernels* kernels);

namespace cpu {

// Whether linear_bf16 can multiply with this matrix here.
bool has_bf16_product(const WeightView& w);

// Scratch memory: of activations, shared, and of each worker.
size_t bf16_shared_floats(int64_t tokens, int64_t k);
size_t bf16_worker_floats(const WeightView& w);

// a.out (+)= x * w^T + a.bias, rows [0, rows) of w (whole groups where it is packed); a.w and a.x
// are not used. k is cut at multiples of the kernels' depth, the same for every row and token; sums
// of a cut are added in ascending order, or are where those of the next begin (kernels that keep
// sums).
void linear_bf16(ThreadPool& pool, const Workspace& workspace, float* shared, const WeightView& w,
                 int64_t rows, const Activations& x, const LinearArgs& a);

}  // namespace cpu
}  // namespace spillway
