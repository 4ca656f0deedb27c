// SPDX-License-Identifier: Apache-2.0
// A warp's ring in shared memory, through which comes what it reads (token_walk_list.h), copied as
// far ahead as the ring reaches. Device code for Hopper and later.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/token_walk_list.h"

namespace spillway::cuda {

#if __CUDA_ARCH__ >= 900

template <class Pieces, int D>
class WalkRing {
 public:
  static constexpr int kStageBytes = Pieces::kStageBytes;

  // `memory`: stages * kStageBytes, `barriers`: stages words; both of this warp.
  __device__ __forceinline__ WalkRing(const Walk& walk, const WalkToken& token,
                                      const WalkSeat& seat, uint8_t* memory, uint64_t* barriers)
      : cursor_(walk, token, seat),
        stages_(walk.stages),
        memory_(memory),
        barriers_(shared_address(barriers)),
        is_first_lane_(threadIdx.x % 32 == 0) {
    if (is_first_lane_) {
      for (int i = 0; i < stages_; ++i) init_barrier(barriers_ + 8 * i, 1);
      publish_barriers();
    }
    __syncwarp();
    for (int i = 0; i < stages_; ++i) copy_next(i);
  }

  // Waits for what comes next.
  __device__ __forceinline__ const uint8_t* wait() {
    wait_barrier(barriers_ + 8 * stage_, parity_);
    return memory_ + stage_ * kStageBytes;
  }
  // The warp has read it.
  __device__ __forceinline__ void release() {
    __syncwarp();
    copy_next(stage_);
    if (++stage_ == stages_) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  __device__ __forceinline__ void copy_next(int stage) {
    if (cursor_.at_end()) return;
    if (is_first_lane_) {
      if (cursor_.is_page()) {
        constexpr int kBytes = WalkCursor<Pieces, D>::kPageBytes;
        arrive_and_expect(barriers_ + 8 * stage, kBytes);
        copy(stage, 0, cursor_.page(), kBytes);
      } else {
        const Pieces& piece = cursor_.piece();
        const int bytes = piece.bytes();
        arrive_and_expect(barriers_ + 8 * stage, Pieces::kCopies * bytes);
#pragma unroll
        for (int i = 0; i < Pieces::kCopies; ++i)
          copy(stage, i * Pieces::kCopyBytes, piece.from(i), bytes);
      }
    }
    cursor_.advance();
  }
  __device__ __forceinline__ void copy(int stage, int offset, const std::byte* from, int bytes) {
    copy_once(shared_address(memory_ + stage * kStageBytes + offset), from, bytes,
              barriers_ + 8 * stage);
  }

  WalkCursor<Pieces, D> cursor_;
  int stages_;
  uint8_t* memory_;
  uint32_t barriers_;
  bool is_first_lane_;
  int stage_ = 0;
  uint32_t parity_ = 0;
};

#endif

}  // namespace spillway::cuda
