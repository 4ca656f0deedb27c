// SPDX-License-Identifier: Apache-2.0
// Each warp's ring in shared memory, through which comes what it reads (persistent_step_list.h),
// copied as far ahead as the ring reaches. Device code for Hopper and later.
//
// The copies are asked for by a warp of their own, behind those that compute: where the next piece
// lies takes as many instructions as half of its products, and those who multiply should not wait
// for them. As much as the ring takes: with fewer copies on their way at a time blocks met no
// sooner.
#pragma once

#include "cuda/kernel/async_copy.cuh"
#include "cuda/kernel/block_sync.cuh"
#include "cuda/persistent/persistent_step_list.h"

namespace spillway::cuda {

#if __CUDA_ARCH__ >= 900

// Of the warps that compute.
__device__ __forceinline__ void sync_compute_warps() { sync_first<kStepThreads>(); }

// All rings of a block: memory, and for each stage a barrier that it is full and one that it is
// empty again.
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

  // By one thread; then all of the block meet.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < 2 * kStepWarps * stages; ++i) init_barrier(barriers + 8 * i, 1);
    publish_barriers();
  }
};

// What a warp that computes sees of its ring.
template <class Pieces>
class StepRing {
 public:
  __device__ __forceinline__ StepRing(const StepRings<Pieces>& rings, int warp)
      : memory_(rings.stage(warp, 0)), barriers_(rings.full(warp, 0)), stages_(rings.stages) {}

  // Waits for what comes next.
  __device__ __forceinline__ const uint8_t* wait() {
    wait_barrier(barriers_ + 16 * stage_, parity_);
    return memory_ + stage_ * Pieces::kStageBytes;
  }
  // The warp has read it.
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

// The warp that asks for copies; lane w for those of warp w. None of them waits: the warps meet at
// barriers, so that one whose ring is full may wait for another that gets nothing.
template <class Pieces, int D>
__device__ __forceinline__ void feed_rings(const StepPhases& step, const StepToken& token,
                                           const GridSeat& seat, const StepRings<Pieces>& rings) {
  const int warp = threadIdx.x % 32;
  if (warp >= kStepWarps) return;
  StepCursor<Pieces, D> cursor(step, token, {seat.block, seat.blocks, warp});
  constexpr unsigned kLanes = (1U << kStepWarps) - 1;
  int stage = 0;
  uint32_t parity = 1;  // of a new barrier, the phase before the first is over
  // Together round by round: a lane that has nothing to do must not keep the others.
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
