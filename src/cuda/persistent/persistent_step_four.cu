// SPDX-License-Identifier: Apache-2.0
// Persistent steps over packed 4-bit weights with a scale per block.
#include "cuda/persistent/persistent_step_groups.cuh"
#include "cuda/persistent/persistent_step_inl.cuh"

namespace spillway::cuda {

void launch_persistent_q4_0(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream) {
  launch_persistent_of<PackedWeights<BlockQ4_0>, GroupPieces<BlockQ4_0, 128>>(step, gpu, stream);
}
void launch_persistent_q4_1(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream) {
  launch_persistent_of<PackedWeights<BlockQ4_1>, GroupPieces<BlockQ4_1, 128>>(step, gpu, stream);
}
void launch_persistent_g4(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream) {
  launch_persistent_of<PackedWeights<BlockG4>, GroupPieces<BlockG4, 128>>(step, gpu, stream);
}

}  // namespace spillway::cuda
