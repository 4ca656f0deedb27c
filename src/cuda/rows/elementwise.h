// SPDX-License-Identifier: Apache-2.0
// Small ops of a step that touch each element once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tensor/op_kinds.h"
#include "tensor/tensor_view.h"

namespace spillway::cuda {

// x = f(x), in place.
void activate(ActivationKind kind, const Activations& x, cudaStream_t stream);
// out = f(gate) * up; out may be gate or up. All have the same type.
void gated_activate(ActivationKind kind, const Activations& gate, const Activations& up,
                    const Activations& out, cudaStream_t stream);
// x = x * factor, in place. F32.
void scale(const Activations& x, float factor, cudaStream_t stream);
// out[i] = x[rows[i]] in out's type; `rows` is in device memory, or null for all rows in their
// order.
void gather_rows(const Activations& x, const int32_t* rows, const Activations& out,
                 cudaStream_t stream);
// out = x in out's type. x or out may be pinned host memory.
void copy_rows(const Activations& x, const Activations& out, cudaStream_t stream);
// out[i][2 j], out[i][2 j + 1] = cosine and sine of positions[i] * frequencies[j], times scale.
// F32.
void rope_angles(const int32_t* positions, const float* frequencies, float scale,
                 const Activations& out, cudaStream_t stream);
// Rotates the first angles.cols elements of each head of x, in place.
void rope(const Activations& x, int head_dim, const Activations& angles, RopeStyle style,
          cudaStream_t stream);

}  // namespace spillway::cuda
