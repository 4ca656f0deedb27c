// SPDX-License-Identifier: Apache-2.0
// Matrix products of stored weights with F32 activations.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "cpu/workspace.h"
#include "device/ops.h"

namespace spillway::cpu {

// Computes out (+)= x * w^T + bias. w [n, k] of any type at any alignment, x [tokens, k], out
// [tokens, n]; bias [1, n] of a plain type, or empty.
//
// For few tokens, plain types are reduced in F32 and packed ones as linear_int8.h says. If the
// processor has instructions for it, and never when `deterministic`, few tokens on F16 and BF16 are
// computed as linear_half.h says, and many tokens as linear_bf16.h says.
//
// The F32 kernels reduce every element in one order, whatever the tokens, the slice and the
// threads: k is cut at multiples of 512 (a remainder of at most 256 joins the last cut); within a
// cut, lane k % lanes accumulates by fused multiply-add in ascending k; lanes are added pairwise;
// cuts are added in ascending order to (old out) + bias.
void linear(ThreadPool& pool, Workspace& workspace, const WeightView& w, const WeightView& bias,
            const Activations& x, const Activations& out, LinearMode mode,
            bool deterministic = false, const TuningTable* tuning = nullptr);

// Computes linear() of several matrices with the same input, which is converted to each form once.
// The rows of all matrices are one job, so that no thread waits between two matrices.
void linears(ThreadPool& pool, Workspace& workspace, std::span<const Projection> parts,
             const Activations& x, bool deterministic = false, const TuningTable* tuning = nullptr);

// Returns the kind of kernel that linear() takes: the one in the table or, if it has none, a
// default. GEMM becomes kFlat if there is no GEMM for these weights, and always when
// `deterministic`, because GEMM rounds weights and activations.
LinearKernel choose_linear_kernel(const WeightView& w, int64_t tokens, bool deterministic,
                                  const TuningTable* tuning);

}  // namespace spillway::cpu
