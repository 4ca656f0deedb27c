// SPDX-License-Identifier: Apache-2.0
// Chooses the persistent kernel for a model's types of weights (one launch of it runs all phases of
// a step), has the kernels for F16 and BF16, and computes the shared memory that each one needs.
#include "cuda/persistent/persistent_step_kernel.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "cuda/persistent/persistent_step_groups.cuh"
#include "cuda/persistent/persistent_step_inl.cuh"
#include "cuda/persistent/persistent_step_launch.h"
#include "cuda/persistent/persistent_step_linear.cuh"

namespace spillway::cuda {
namespace {

constexpr int kAttentionBytes = sizeof(AttentionShared<128, 4>);
constexpr int kLeastStages = 4;
static_assert(sizeof(StepPhases) <= 32764, "a kernel's arguments");

// The shared memory that weights of a type need, in bytes: a stage of a warp's ring buffer of
// weights, the kernel's static shared memory, and a phase's input of k columns.
struct WeightShape {
  int stage_bytes, declared_bytes, input_bytes;
};
WeightShape plain_shape(int k) {
  return {PairPieces<128>::kStageBytes, sizeof(PairSums), (2 * k + 127) / 128 * 128};
}
template <class Block>
WeightShape packed_shape(int k) {
  return {GroupPieces<Block, 128>::kStageBytes, sizeof(GroupSums), GroupInput<Block>(k).bytes};
}

template <class First, class Second, DType kSecond>
WeightShape mixed_shape(int k) {
  return {SizedPieces<MixedSizes<First, Second, kSecond>, 128>::kStageBytes, sizeof(GroupSums),
          std::max(GroupInput<First>(k).bytes, GroupInput<Second>(k).bytes)};
}

template <class T>
void launch_plain(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream) {
  launch_persistent_of<PlainWeights<T>, PairPieces<128>>(step, gpu, stream);
}

// All kinds of weights that have a kernel; those of a single type come first.
struct WeightKind {
  DType type, other;
  WeightShape (*shape)(int k);
  void (*launch)(const StepPhases& step, const GpuShape& gpu, cudaStream_t stream);
};
constexpr WeightKind kKinds[] = {
    {DType::kF16, DType::kF16, plain_shape, launch_plain<__half>},
    {DType::kBF16, DType::kBF16, plain_shape, launch_plain<__nv_bfloat16>},
    {DType::kQ4_0, DType::kQ4_0, packed_shape<BlockQ4_0>, launch_persistent_q4_0},
    {DType::kQ4_1, DType::kQ4_1, packed_shape<BlockQ4_1>, launch_persistent_q4_1},
    {DType::kG4, DType::kG4, packed_shape<BlockG4>, launch_persistent_g4},
    {DType::kQ8_0, DType::kQ8_0, packed_shape<BlockQ8_0>, launch_persistent_q8_0},
    {DType::kQ4_K, DType::kQ4_K, packed_shape<BlockQ4_K>, launch_persistent_q4_k},
    {DType::kQ6_K, DType::kQ6_K, packed_shape<BlockQ6_K>, launch_persistent_q6_k},
    {DType::kQ4_K, DType::kQ6_K, mixed_shape<BlockQ4_K, BlockQ6_K, DType::kQ6_K>,
     launch_persistent_q4_k_q6_k},
    {DType::kQ5_K, DType::kQ6_K, mixed_shape<BlockQ5_K, BlockQ6_K, DType::kQ6_K>,
     launch_persistent_q5_k_q6_k},
};
const WeightKind* try_kind(const WeightTypes& types) {
  const auto* const found = std::ranges::find_if(kKinds, [&](const WeightKind& kind) {
    return std::ranges::all_of(types.all(),
                               [&](DType type) { return type == kind.type || type == kind.other; });
  });
  return found == std::end(kKinds) ? nullptr : found;
}
const WeightKind& kind_of(const WeightTypes& types) {
  const WeightKind* const kind = try_kind(types);
  SPW_ASSERT(kind != nullptr);
  return *kind;
}

}  // namespace

bool has_persistent_kernel(const WeightTypes& weights) { return try_kind(weights) != nullptr; }

int persistent_input_bytes(const WeightTypes& weights, int k) {
  return std::max(kAttentionBytes, kind_of(weights).shape(k).input_bytes);
}

int persistent_stages(const GpuShape& gpu, const WeightTypes& weights, int input_bytes) {
  if (gpu.compute_capability < 90) return 0;
  const WeightShape shape = kind_of(weights).shape(0);
  constexpr int kNormBytes = 256;
  const int left =
      gpu.shared_bytes - input_bytes - kStepBarrierBytes - shape.declared_bytes - kNormBytes;
  const int stages =
      std::min(left / (kStepWarps * shape.stage_bytes), kStepBarrierBytes / (16 * kStepWarps));
  return stages < kLeastStages ? 0 : stages;
}

size_t persistent_scratch_bytes(const GpuShape& gpu) {
  return kScratchCounterBytes + static_cast<size_t>(gpu.sms) * sizeof(AttentionPart<128, 4>);
}

void launch_persistent(const StepPhases& step, const WeightTypes& weights, const GpuShape& gpu,
                       cudaStream_t stream) {
  kind_of(weights).launch(step, gpu, stream);
}

}  // namespace spillway::cuda
