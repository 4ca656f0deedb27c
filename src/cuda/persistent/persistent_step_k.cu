// SPDX-License-Identifier: Apache-2.0
// Persistent steps over packed K-quant types.
#include "cuda/persistent/persistent_step_groups.cuh"
#include "cuda/persistent/persistent_step_inl.cuh"

namespace spillway::cuda {

void launch_persistent_q4_k(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream) {
  launch_persistent_of<PackedWeights<BlockQ4_K>, GroupPieces<BlockQ4_K, 128>>(step, gpu, stream);
}
void launch_persistent_q6_k(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream) {
  launch_persistent_of<PackedWeights<BlockQ6_K>, GroupPieces<BlockQ6_K, 128>>(step, gpu, stream);
}

// These are for files of mixed types: most matrices have one type, some have Q6_K.
void launch_persistent_q4_k_q6_k(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream) {
  launch_persistent_of<MixedWeights<BlockQ4_K, BlockQ6_K, DType::kQ6_K>,
                       SizedPieces<MixedSizes<BlockQ4_K, BlockQ6_K, DType::kQ6_K>, 128>>(step, gpu,
                                                                                         stream);
}
void launch_persistent_q5_k_q6_k(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream) {
  launch_persistent_of<MixedWeights<BlockQ5_K, BlockQ6_K, DType::kQ6_K>,
                       SizedPieces<MixedSizes<BlockQ5_K, BlockQ6_K, DType::kQ6_K>, 128>>(step, gpu,
                                                                                         stream);
}

}  // namespace spillway::cuda
