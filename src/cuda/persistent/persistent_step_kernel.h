// SPDX-License-Identifier: Apache-2.0
// The kernels behind persistent_step.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/gpu_shape.h"
#include "cuda/persistent/persistent_step_args.h"
#include "device/ops.h"

namespace spillway::cuda {

// Whether there is a kernel for weights of these types: F16 and BF16 in rows, others packed.
bool has_persistent_kernel(const WeightTypes& weights);
// Shared memory for the input of a phase with k columns (0: of attention), and how deep each warp's
// ring is beside it: 0 where a GPU cannot do so.
int persistent_input_bytes(const WeightTypes& weights, int k);
int persistent_stages(const GpuShape& gpu, const WeightTypes& weights, int input_bytes);
size_t persistent_scratch_bytes(const GpuShape& gpu);

// All of its phases. Throws kDevice when the launch is refused.
void launch_persistent(const StepPhases& step, const WeightTypes& weights, const GpuShape& gpu,
                       cudaStream_t stream);

}  // namespace spillway::cuda
