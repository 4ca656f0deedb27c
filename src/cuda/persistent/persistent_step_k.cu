// SPDX-License-Identifier: Apache-2.0
// Walks over packed K types.
#include "cuda/persistent/persistent_step_groups.cuh"
#include "cuda/persistent/persistent_step_inl.cuh"

namespace spillway::cuda {

void launch_walk_q4_k(const Walk& walk, const GpuShape& gpu, cudaStream_t stream) {
  launch_walk_of<PackedWeights<BlockQ4_K>, GroupPieces<BlockQ4_K, 128>>(walk, gpu, stream);
}
void launch_walk_q6_k(const Walk& walk, const GpuShape& gpu, cudaStream_t stream) {
  launch_walk_of<PackedWeights<BlockQ6_K>, GroupPieces<BlockQ6_K, 128>>(walk, gpu, stream);
}

}  // namespace spillway::cuda
