// SPDX-License-Identifier: Apache-2.0
// RMSNorm and LayerNorm on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "tensor/op_kinds.h"
#include "tensor/tensor_view.h"

namespace spillway::cuda {

// out = norm(x) * weight + bias, row by row. x, out [rows, dim] of any activation type; weight,
// bias [dim] or null. out may be x. Sums are made in one order whatever the number of rows.
void norm(NormKind kind, const Activations& x, const float* weight, const float* bias, float eps,
          const Activations& out, cudaStream_t stream);
// out += norm(x) * weight + bias. x and out are F32, and not the same.
void add_norm(NormKind kind, const Activations& x, const float* weight, const float* bias,
              float eps, const Activations& out, cudaStream_t stream);

// Does the same for each head of `head_dim` columns of x, in place; bits do not depend on other
// heads. A number that F16 could not hold makes its head NaN.
void head_norm(NormKind kind, const Activations& x, int head_dim, const float* weight, float eps,
               cudaStream_t stream);

}  // namespace spillway::cuda
