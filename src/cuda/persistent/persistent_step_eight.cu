// SPDX-License-Identifier: Apache-2.0
// Walks over packed 8-bit weights.
#include "cuda/persistent/persistent_step_groups.cuh"
#include "cuda/persistent/persistent_step_inl.cuh"

namespace spillway::cuda {

void launch_walk_q8_0(const Walk& walk, const GpuShape& gpu, cudaStream_t stream) {
  launch_walk_of<PackedWeights<BlockQ8_0>, GroupPieces<BlockQ8_0, 128>>(walk, gpu, stream);
}

}  // namespace spillway::cuda
