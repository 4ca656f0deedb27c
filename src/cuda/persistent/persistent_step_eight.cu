// SPDX-License-Identifier: Apache-2.0
// Persistent steps over packed 8-bit weights.
#include "cuda/persistent/persistent_step_groups.cuh"
#include "cuda/persistent/persistent_step_inl.cuh"

namespace spillway::cuda {

void launch_persistent_q8_0(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream) {
  launch_persistent_of<PackedWeights<BlockQ8_0>, GroupPieces<BlockQ8_0, 128>>(step, gpu, stream);
}

}  // namespace spillway::cuda
