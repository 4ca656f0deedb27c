// SPDX-License-Identifier: Apache-2.0
// Matrix products of few tokens with plain 16-bit weights, at the speed of memory if there are
// instructions for it. Weights are read once, as they are stored in the file.
//
// Rounding: on ARM, up to four tokens have activations rounded to 11 bits (F16 weights; NMSE below
// 1e-7) or 16 (BF16); with AVX-512, up to eight tokens have nothing rounded (AMX, BF16: to 16
// bits); more tokens are rounded as in linear_bf16.h. Products are added up in F32, in an order
// that depends on k and the number of tokens only.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"
#include "cpu/linear/linear_args.h"
#include "cpu/linear/linear_half_args.h"
#include "tensor/tensor_view.h"

namespace spillway::cpu {

// Returns whether linear_half can multiply with this matrix here, and is the best choice for this
// many tokens.
bool has_half_product(const WeightView& w, int64_t tokens);
// Uses linear_half from this number of tokens on, for benchmarks that compare kernels; 0 restores
// the best choice. Not thread-safe.
void use_half_kernels_from(int64_t tokens);

// Computes a.out (+)= x * w^T + a.bias for a group of tokens; a.x is not used.
struct HalfGroup {
  const HalfKernel* kernel = nullptr;
  int64_t first = 0;  // first token
  HalfProduct product = {};
};
// Returns the group that begins with token `first`.
HalfGroup half_group(const WeightView& w, const LinearArgs& a, int64_t first);

// Returns the floats of scratch memory for a group's activations, for kernels of k columns.
size_t half_shared_floats(const HalfGroup& group);
// Converts a group's tokens of x to the form that its kernel needs. `shared` has
// half_shared_floats().
void pack_half(ThreadPool& pool, const HalfGroup& group, const Activations& x, float* shared);
// Makes a product read its activations from `shared`.
void set_half_input(HalfProduct& product, const float* shared);

}  // namespace spillway::cpu
