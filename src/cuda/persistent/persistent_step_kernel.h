// SPDX-License-Identifier: Apache-2.0
// The kernels of persistent_step.h, each of which computes the ops of a step of one token in one
// launch, phase by phase: a phase is the work of all thread blocks between two grid barriers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/gpu_shape.h"
#include "cuda/persistent/persistent_step_args.h"
#include "device/ops.h"

namespace spillway::cuda {

// Returns whether there is a kernel for weights of these types: F16 and BF16 stored row by row,
// quantized types packed (tensor/packed_layout.h).
bool has_persistent_kernel(const WeightTypes& weights);
// The shared memory for the input of a phase with k columns (k = 0: for attention), and the number
// of stages that each warp's ring has beside it; 0 stages if the GPU cannot run the kernel.
int persistent_input_bytes(const WeightTypes& weights, int k);
int persistent_stages(const GpuShape& gpu, const WeightTypes& weights, int input_bytes);
size_t persistent_scratch_bytes(const GpuShape& gpu);

// Launches all phases of the step. Throws kDevice if the launch is refused.
void launch_persistent(const StepPhases& step, const WeightTypes& weights, const GpuShape& gpu,
                       cudaStream_t stream);

}  // namespace spillway::cuda
