// SPDX-License-Identifier: Apache-2.0
// Converts stored rows of any type to plain numbers on the GPU: whole ranges of a matrix for
// library GEMMs during prefill, and single rows of an embedding table.
#pragma once

#include <cuda_runtime_api.h>

#include "device/ops.h"
#include "tensor/tensor_view.h"

namespace spillway::cuda {

// Sets out [rows, cols] to rows [first_row, first_row + out.rows) of the quantized matrix w, which
// is in the file's layout or packed. out is F16 (saturating), BF16 or F32 and 16-byte aligned, as
// are its rows.
void dequantize_rows(const WeightView& w, int64_t first_row, const Activations& out,
                     cudaStream_t stream);

// Sets, or accumulates into, out[i] = table[ids[i]]. table [entries, dim] of any type and layout;
// ids [out.rows], in device memory and in range; out [ids, dim] F32.
void embed_rows(const WeightView& table, const int32_t* ids, const Activations& out,
                LinearMode mode, cudaStream_t stream);

}  // namespace spillway::cuda
