// SPDX-License-Identifier: Apache-2.0
// Launches a persistent step over weights of one type or of two. These functions are compiled in
// persistent_step_four.cu, _eight.cu and _k.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/gpu_shape.h"
#include "cuda/persistent/persistent_step_args.h"

namespace spillway::cuda {

// Each function launches all phases of the step. Throws kDevice if the launch is refused.
void launch_persistent_q4_0(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream);
void launch_persistent_q4_1(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream);
void launch_persistent_g4(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream);
void launch_persistent_q8_0(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream);
void launch_persistent_q4_k(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream);
void launch_persistent_q4_k_q6_k(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream);
void launch_persistent_q5_k_q6_k(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream);
void launch_persistent_q6_k(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream);

}  // namespace spillway::cuda
