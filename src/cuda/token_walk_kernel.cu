// SPDX-License-Identifier: Apache-2.0
// Walks over F16 and BF16, and what all walks need of shared memory.
#include "cuda/token_walk_kernel.h"

#include <algorithm>
#include <iterator>

#include "cuda/token_walk_groups.cuh"
#include "cuda/token_walk_inl.cuh"
#include "cuda/token_walk_linear.cuh"

namespace spillway::cuda {
namespace {

constexpr int kAttentionBytes = sizeof(AttentionShared<128, 4>);
constexpr int kLeastStages = 4;
static_assert(sizeof(Walk) <= 32764, "a kernel's arguments");

// How weights of a type come: what a stage of a ring takes, what the kernel declares itself, and
// the input of k columns.
struct WeightShape {
  int stage_bytes, declared_bytes, input_bytes;
};
template <class Block>
WeightShape packed_shape(int k) {
  return {GroupPieces<Block, 128>::kStageBytes, sizeof(GroupSums), GroupInput<Block>(k).bytes};
}
WeightShape shape_of(DType weights, int k) {
  switch (weights) {
    case DType::kQ4_0:
      return packed_shape<BlockQ4_0>(k);
    case DType::kQ4_1:
      return packed_shape<BlockQ4_1>(k);
    case DType::kG4:
      return packed_shape<BlockG4>(k);
    case DType::kQ8_0:
      return packed_shape<BlockQ8_0>(k);
    case DType::kQ4_K:
      return packed_shape<BlockQ4_K>(k);
    case DType::kQ6_K:
      return packed_shape<BlockQ6_K>(k);
    default:
      return {PairPieces<128>::kStageBytes, sizeof(PairSums), (2 * k + 127) / 128 * 128};
  }
}

}  // namespace

bool has_walk_kernel(DType weights) {
  constexpr DType kTypes[] = {DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                              DType::kG4,  DType::kQ8_0, DType::kQ4_K, DType::kQ6_K};
  return std::ranges::find(kTypes, weights) != std::end(kTypes);
}

int walk_input_bytes(DType weights, int k) {
  return std::max(kAttentionBytes, shape_of(weights, k).input_bytes);
}

int walk_stages(const GpuShape& gpu, DType weights, int input_bytes) {
  if (gpu.compute_capability < 90) return 0;
  const WeightShape shape = shape_of(weights, 0);
  constexpr int kNormBytes = 256;
  const int left =
      gpu.shared_bytes - input_bytes - kWalkBarrierBytes - shape.declared_bytes - kNormBytes;
  const int stages =
      std::min(left / (kWalkWarps * shape.stage_bytes), kWalkBarrierBytes / (16 * kWalkWarps));
  return stages < kLeastStages ? 0 : stages;
}

size_t walk_scratch_bytes(const GpuShape& gpu) {
  return kScratchCounterBytes + static_cast<size_t>(gpu.sms) * sizeof(AttentionPart<128, 4>);
}

void launch_walk(const Walk& walk, DType weights, const GpuShape& gpu, cudaStream_t stream) {
  switch (weights) {
    case DType::kQ4_0:
      return launch_walk_q4_0(walk, gpu, stream);
    case DType::kQ4_1:
      return launch_walk_q4_1(walk, gpu, stream);
    case DType::kG4:
      return launch_walk_g4(walk, gpu, stream);
    case DType::kQ8_0:
      return launch_walk_q8_0(walk, gpu, stream);
    case DType::kQ4_K:
      return launch_walk_q4_k(walk, gpu, stream);
    case DType::kQ6_K:
      return launch_walk_q6_k(walk, gpu, stream);
    case DType::kBF16:
      return launch_walk_of<PlainWeights<__nv_bfloat16>, PairPieces<128>>(walk, gpu, stream);
    default:
      return launch_walk_of<PlainWeights<__half>, PairPieces<128>>(walk, gpu, stream);
  }
}

}  // namespace spillway::cuda
