// SPDX-License-Identifier: Apache-2.0
// Matrix products of few tokens with plain 16-bit weights, at the speed of memory where there are
// instructions for it. Weights are read once, as they lie in the file.
//
// What is rounded: on ARM, up to four tokens, activations to 11 bits (F16 weights; NMSE below 1e-7)
// or 16 (BF16); with AVX-512, up to eight tokens, nothing (AMX, BF16: to 16 bits); more tokens as
// in linear_bf16.h. Products are added up in F32, in an order that depends on k and the number of
// tokens only.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"
#include "cpu/linear/linear_args.h"
#include "tensor/tensor_view.h"

namespace spillway::cpu {

// Whether linear_half can multiply with this matrix here, and is the one to do it for so many.
bool has_half_product(const WeightView& w, int64_t tokens);
// From this number of tokens on, for benchmarks that compare kernels; 0: what is best again. Not
// thread-safe.
void use_half_kernels_from(int64_t tokens);

// Scratch memory of the activations.
size_t half_shared_floats(const WeightView& w, int64_t tokens);

// a.out (+)= x * w^T + a.bias; a.x is not used.
void linear_half(ThreadPool& pool, float* shared, const WeightView& w, const Activations& x,
                 const LinearArgs& a);

}  // namespace spillway::cpu
