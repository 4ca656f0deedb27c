// SPDX-License-Identifier: Apache-2.0
// Turns the sums of the persistent step's linear layers into their results (persistent_step.h).
#pragma once

#include "cuda/kv/qkv_append.cuh"
#include "cuda/linear/linear_params.cuh"
#include "cuda/persistent/persistent_step_list.h"

namespace spillway::cuda {

#if __CUDA_ARCH__ >= 900

// The result row of one thread. The two rows of a pair, of gate and up or rotated with each other
// by RoPE, are in two threads of a warp.
struct RowEnd {
  int part = 0, row = 0;  // of the result matrix
  int r = 0;              // 0 or 1: first or second of its pair
  bool valid = false;
  float before = 0, bias = 0;  // fetched while sums are computed

  __device__ __forceinline__ void begin(const StepPhase& phase, int its_part, int its_row,
                                        int its_r, bool exists) {
    part = its_part, row = its_row, r = its_r;
    valid = exists && row < phase.n[part];
    before = bias = 0;
    if (!valid) return;
    const int matrix = phase.kind == PhaseKind::kGated ? r : part;
    if (phase.bias[matrix] != nullptr) bias = __ldg(phase.bias[matrix] + row);
    if (phase.kind == PhaseKind::kLinear && phase.epilogue == Epilogue::kAccumulate) {
      before = __ldcg(reinterpret_cast<const float*>(phase.out[part]) + row);
    }
  }

  // Called by all threads of the warp. The other row of the pair is in lane ^ partner.
  template <int D>
  __device__ __forceinline__ void finish(const StepPhases& step, const StepPhase& phase,
                                         const StepToken& token, float sum, int partner) const {
    float mine = sum + bias, other = __shfl_xor_sync(~0U, mine, partner);
    if (!valid) return;
    if (phase.kind == PhaseKind::kGated) {
      if (r == 0) {
        store_as(phase.out_type, phase.out[0], row, activated(phase.activation, mine) * other);
      }
      return;
    }
    if (phase.kind == PhaseKind::kLinear) {
      if (phase.epilogue == Epilogue::kAccumulate) {
        reinterpret_cast<float*>(phase.out[part])[row] = before + mine;
      } else {
        if (phase.epilogue == Epilogue::kActivate) mine = activated(phase.activation, mine);
        store_as(phase.out_type, phase.out[part], row, mine);
      }
      return;
    }
    // Rounds in between as linears() and rope_and_append() would.
    const KvFaults faults{step.appends.faults, phase.layer};
    mine = QkvAppend::stored_sum(phase.out_type, part, mine, faults);
    other = QkvAppend::stored_sum(phase.out_type, 0, other, faults);  // its own thread reports
    if (part < 2 && step.appends.angles != nullptr) {
      const int index = step.appends.interleaved ? row % D / 2 : row % (D / 2);
      const float2 angle = __ldg(reinterpret_cast<const float2*>(step.appends.angles) + index);
      mine = QkvAppend::rotated(part, r, angle, mine, other);
    }
    if (part == 0) return store_as(phase.out_type, phase.out[0], row, mine);
    std::byte* const page = phase.plane(part) + token.block * step.sequence.block_bytes +
                            static_cast<int64_t>(row / D) * (kKvBlockTokens * D * 2);
    reinterpret_cast<__half*>(page)[token.position % kKvBlockTokens * D + row % D] =
        half_in_page(mine, part == 1 ? KvPart::kKeys : KvPart::kValues, faults);
  }
};

#endif

}  // namespace spillway::cuda
