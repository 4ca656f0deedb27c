// SPDX-License-Identifier: Apache-2.0
// Walks over packed 4-bit weights with a scale per block.
#include "cuda/persistent/persistent_step_groups.cuh"
#include "cuda/persistent/persistent_step_inl.cuh"

namespace spillway::cuda {

void launch_walk_q4_0(const Walk& walk, const GpuShape& gpu, cudaStream_t stream) {
  launch_walk_of<PackedWeights<BlockQ4_0>, GroupPieces<BlockQ4_0, 128>>(walk, gpu, stream);
}
void launch_walk_q4_1(const Walk& walk, const GpuShape& gpu, cudaStream_t stream) {
  launch_walk_of<PackedWeights<BlockQ4_1>, GroupPieces<BlockQ4_1, 128>>(walk, gpu, stream);
}
void launch_walk_g4(const Walk& walk, const GpuShape& gpu, cudaStream_t stream) {
  launch_walk_of<PackedWeights<BlockG4>, GroupPieces<BlockG4, 128>>(walk, gpu, stream);
}

}  // namespace spillway::cuda
