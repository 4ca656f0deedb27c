// SPDX-License-Identifier: Apache-2.0
// Each warp's ring of stages in shared memory, into which all that it reads
// (persistent_step_list.h) is copied as far ahead as the ring has room. Device code for Hopper and
// later.
//
// A warp of its own, beside those that compute, issues the copies: finding where the next piece
// lies takes as many instructions as half of its products, and the computing warps should not wait
// for that. It fills the ring completely: with fewer copies in flight, thread blocks did not reach
// the barrier any sooner.
#pragma once

#include "cuda/kernel/async_copy.cuh"
#include "cuda/kernel/block_sync.cuh"
#include "cuda/persistent/persistent_step_list.h"

namespace spillway::cuda {

#if __CUDA_ARCH__ >= 900

// A barrier of the warps that compute.
__device__ __forceinline__ void sync_compute_warps() { sync_first<kStepThreads>(); }

// All rings of a thread block: their memory, and for each stage a barrier that says it is full and
// one that says it is empty again.
template <class Pieces>
struct StepRings {
  static constexpr int kStageBytes = Pieces::kStageBytes;
  uint8_t* memory;
  uint32_t barriers;
  int stages;

  __device__ __forceinline__ uint8_t* stage(int warp, int i) const {
    return memory + (warp * stages + i) * kStageBytes;
  }
  __device__ __forceinline__ uint32_t full(int warp, int i) const {
    return barriers + 16 * (warp * stages + i);
  }
  __device__ __forceinline__ uint32_t empty(int warp, int i) const { return full(warp, i) + 8; }

  // Called by one thread; a barrier of the whole thread block must follow.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < 2 * kStepWarps * stages; ++i) init_barrier(barriers + 8 * i, 1);
    publish_barriers();
  }
};

// A computing warp's view of its ring.
template <class Pieces>
class StepRing {
 public:
  __device__ __forceinline__ StepRing(const StepRings<Pieces>& rings, int warp)
      : memory_(rings.stage(warp, 0)), barriers_(rings.full(warp, 0)), stages_(rings.stages) {}

  // Waits for the next piece or page and returns it.
  __device__ __forceinline__ const uint8_t* wait() {
    wait_barrier(barriers_ + 16 * stage_, parity_);
    return memory_ + stage_ * Pieces::kStageBytes;
  }
  // Called when the warp has read the current stage.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(barriers_ + 16 * stage_ + 8);
    if (++stage_ == stages_) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  uint8_t* memory_;
  uint32_t barriers_;
  int stages_;
  int stage_ = 0;
  uint32_t parity_ = 0;
};

// Run by the warp that issues copies; lane w issues those of warp w. A lane never blocks on a full
// ring: its warp may be waiting at a barrier for a warp whose ring would then not be filled.
template <class Pieces, int D>
__device__ __forceinline__ void feed_rings(const StepPhases& step, const StepToken& token,
                                           const GridSeat& seat, const StepRings<Pieces>& rings) {
  const int warp = threadIdx.x % 32;
  if (warp >= kStepWarps) return;
  StepCursor<Pieces, D> cursor(step, token, {seat.block, seat.blocks, warp});
  constexpr unsigned kLanes = (1U << kStepWarps) - 1;
  int stage = 0;
  uint32_t parity = 1;  // a new barrier counts the phase before its first as complete
  // The lanes go round by round together: a lane that has nothing to do must not hold up the
  // others.
  while (__any_sync(kLanes, !cursor.at_end())) {
    const bool ready = !cursor.at_end() && try_barrier(rings.empty(warp, stage), parity);
    if (!__any_sync(kLanes, ready)) __nanosleep(20);
    if (!ready) continue;
    const uint32_t full = rings.full(warp, stage);
    const uint32_t to = shared_address(rings.stage(warp, stage));
    if (cursor.is_page()) {
      constexpr int kBytes = StepCursor<Pieces, D>::kPageBytes;
      arrive_and_expect(full, kBytes);
      copy_once(to, cursor.page(), kBytes, full);
    } else {
      const Pieces& piece = cursor.piece();
      const int bytes = piece.bytes();
      arrive_and_expect(full, Pieces::kCopies * bytes);
#pragma unroll
      for (int i = 0; i < Pieces::kCopies; ++i)
        copy_once(to + i * Pieces::kCopyBytes, piece.from(i), bytes, full);
    }
    cursor.advance();
    if (++stage == rings.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

#endif

}  // namespace spillway::cuda
