// SPDX-License-Identifier: Apache-2.0
// The kernel behind token_walk.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/gpu_shape.h"
#include "cuda/token_walk_args.h"

namespace spillway::cuda {

// Shared memory for the input of a phase with k columns (0: of attention), and how deep each warp's
// ring is beside it: 0 where a GPU cannot walk so.
int walk_input_bytes(int k);
int walk_stages(const GpuShape& gpu, int input_bytes);
size_t walk_scratch_bytes(const GpuShape& gpu);

// All of its phases, with weights of F16 or BF16. Throws kDevice when the launch is refused.
void launch_walk(const Walk& walk, DType type, const GpuShape& gpu, cudaStream_t stream);

}  // namespace spillway::cuda
