// SPDX-License-Identifier: Apache-2.0
// What a warp of the walk reads, in order, and its ring in shared memory through which it comes
// (token_walk.h). Device code for Hopper and later.
//
// The list is the same for the copies, which run ahead, and for the warp that computes: pairs of
// rows of weights in pieces of kPieceColumns columns, and pages of K and V.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/token_walk_args.h"
#include "tensor/kv_format.h"

namespace spillway::cuda {

inline constexpr int kWalkWarps = 8;
inline constexpr int kWalkThreads = 32 * kWalkWarps;
inline constexpr int kPieceColumns = 1024;
inline constexpr int kPieceRowBytes = 2 * kPieceColumns;
inline constexpr int kStageBytes = 2 * kPieceRowBytes;  // a page of 16 tokens and 128 elements too

#if __CUDA_ARCH__ >= 900

// How attention is dealt to blocks: items of one kv head, up to G of its queries and a run of pages.
// Inside a block the pages go round the warps.
struct AttentionItems {
  int first_page, pages;  // that the token sees; the last is the one it is written to
  int pages_per_part, parts;
  int query_chunks;  // per kv head
  int count;
  int first_token, position;

  template <int G>
  __device__ static AttentionItems of(const WalkSequence& s, int blocks) {
    AttentionItems items = {};
    if (s.heads == 0) return items;
    items.position = *s.position;
    items.first_token = s.window > 0 ? max(0, items.position + 1 - s.window) : 0;
    items.first_page = items.first_token / kKvBlockTokens;
    items.pages = items.position / kKvBlockTokens - items.first_page + 1;
    items.query_chunks = (s.heads / s.kv_heads + G - 1) / G;
    // Two pages per warp are worth a block of their own.
    const int rows = s.kv_heads * items.query_chunks;
    const int wanted = (items.pages + 2 * kWalkWarps - 1) / (2 * kWalkWarps);
    const int most = max(1, min(wanted, blocks / rows));
    items.pages_per_part = (items.pages + most - 1) / most;
    items.parts = (items.pages + items.pages_per_part - 1) / items.pages_per_part;
    items.count = rows * items.parts;
    return items;
  }
  __device__ int part_pages(int part) const {
    return min(pages_per_part, pages - part * pages_per_part);
  }
  // Those of them that do not change in this step.
  __device__ int part_full_pages(int part) const {
    return part_pages(part) - (part == parts - 1 ? 1 : 0);
  }
};

// A pair of rows: of one matrix or, of a gated layer, of both.
struct RowPair {
  int part;
  int row[2];
};

template <int D>
__device__ __forceinline__ RowPair pair_of(const WalkPhase& phase, bool interleaved, int unit) {
  if (phase.kind == WalkKind::kGated) return {0, {unit, unit}};
  int part = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int here = (phase.n[i] + 1) / 2;
    if (part == i && unit >= here && phase.n[i + 1] > 0) {
      unit -= here;
      part = i + 1;
    }
  }
  if (phase.kind == WalkKind::kAppend && part < 2 && !interleaved) {
    const int row = unit / (D / 2) * D + unit % (D / 2);
    return {part, {row, row + D / 2}};
  }
  return {part, {2 * unit, 2 * unit + 1}};
}

// One warp's ring.
template <int D>
class WalkRing {
 public:
  // `memory`: stages * kStageBytes, `barriers`: stages words; both of this warp.
  __device__ WalkRing(const Walk& walk, const AttentionItems& items, uint8_t* memory,
                      uint64_t* barriers)
      : walk_(walk),
        items_(items),
        memory_(memory),
        barriers_(shared32(barriers)),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32) {
    if (lane_ == 0) {
      for (int i = 0; i < walk.stages; ++i) init_barrier(barriers_ + 8 * i, 1);
      publish_barriers();
    }
    __syncwarp();
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once_));
    phase_ = -1;
    next_phase();
    for (int i = 0; i < walk.stages; ++i) copy_next(i);
  }

  // The first of a phase's units that is this warp's; the next are unit_step() apart.
  __device__ static int first_unit(const WalkPhase& phase) {
    const int mine = (threadIdx.x / 32) * gridDim.x + blockIdx.x - phase.first_warp;
    return mine < 0 ? mine + unit_step() : mine;
  }
  __device__ static int unit_step() { return kWalkWarps * gridDim.x; }

  // Waits for what comes next in the list.
  __device__ __forceinline__ const uint8_t* wait() {
    wait_barrier(barriers_ + 8 * stage_, parity_);
    return memory_ + stage_ * kStageBytes;
  }
  // The warp has read it.
  __device__ __forceinline__ void release() {
    __syncwarp();
    copy_next(stage_);
    if (++stage_ == walk_.stages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  __device__ __forceinline__ void copy(int stage, int offset, const std::byte* from, int bytes) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1], %2, [%3], %4;" ::"r"(shared32(memory_ + stage * kStageBytes + offset)),
        "l"(from), "r"(bytes), "r"(barriers_ + 8 * stage), "l"(once_)
        : "memory");
  }

  __device__ __forceinline__ void copy_next(int stage) {
    if (phase_ >= walk_.count) return;
    if (is_attention_) return copy_page(stage);
    const int bytes = min(kPieceRowBytes, row_bytes_ - at_);
    if (lane_ == 0) {
      arrive_and_expect(barriers_ + 8 * stage, 2 * bytes);
      copy(stage, 0, row_[0] + at_, bytes);
      copy(stage, kPieceRowBytes, row_[1] + at_, bytes);
    }
    at_ += bytes;
    if (at_ < row_bytes_) return;
    unit_ += unit_step();
    start_unit();
  }

  __device__ __forceinline__ void copy_page(int stage) {
    const WalkPhase& phase = walk_.phases[phase_];
    const WalkSequence& s = walk_.sequence;
    const int part = unit_ % items_.parts;
    const int head = unit_ / items_.parts / items_.query_chunks;
    const int page = items_.first_page + part * items_.pages_per_part + at_;
    constexpr int kBytes = kKvBlockTokens * D * 2;
    if (lane_ == 0) {
      const std::byte* const from = phase.out[is_v_ ? 2 : 1] +
                                    __ldg(s.block_table + page) * s.block_bytes +
                                    static_cast<int64_t>(head) * kBytes;
      arrive_and_expect(barriers_ + 8 * stage, kBytes);
      copy(stage, 0, from, kBytes);
    }
    is_v_ = !is_v_;
    if (is_v_) return;
    at_ += kWalkWarps;
    if (at_ < items_.part_full_pages(part)) return;
    unit_ += gridDim.x;
    start_item();
  }

  // Where there is none the next phase begins.
  __device__ __forceinline__ void start_unit() {
    if (unit_ >= walk_.phases[phase_].units) return next_phase();
    set_rows();
  }
  __device__ __forceinline__ void set_rows() {
    const WalkPhase& phase = walk_.phases[phase_];
    const RowPair pair = pair_of<D>(phase, walk_.sequence.interleaved, unit_);
    const bool gated = phase.kind == WalkKind::kGated;
    const int last = phase.n[pair.part] - 1;  // of an odd number of rows the last is read twice
    row_[0] = phase.w[pair.part] + pair.row[0] * static_cast<int64_t>(row_bytes_);
    row_[1] = phase.w[gated ? 1 : pair.part] + min(pair.row[1], last) * static_cast<int64_t>(row_bytes_);
    at_ = 0;
  }
  __device__ __forceinline__ bool find_item() {
    for (; unit_ < items_.count; unit_ += gridDim.x) {
      if (warp_ < items_.part_full_pages(unit_ % items_.parts)) {
        at_ = warp_;
        is_v_ = false;
        return true;
      }
    }
    return false;
  }
  __device__ __forceinline__ void start_item() {
    if (!find_item()) next_phase();
  }
  __device__ __forceinline__ void next_phase() {
    while (++phase_ < walk_.count) {
      const WalkPhase& phase = walk_.phases[phase_];
      is_attention_ = phase.kind == WalkKind::kAttention;
      if (is_attention_) {
        unit_ = blockIdx.x;
        if (find_item()) return;
      } else {
        unit_ = first_unit(phase);
        row_bytes_ = 2 * phase.k;
        if (unit_ < phase.units) return set_rows();
      }
    }
  }

  const Walk& walk_;
  const AttentionItems& items_;
  uint8_t* memory_;
  uint32_t barriers_;
  int lane_, warp_;
  uint64_t once_;  // how the L2 cache treats what is read once
  int stage_ = 0;
  uint32_t parity_ = 0;
  // Where the copies are.
  int phase_, unit_ = 0, at_ = 0, row_bytes_ = 0;
  const std::byte* row_[2] = {};
  bool is_attention_ = false, is_v_ = false;
};

#endif

}  // namespace spillway::cuda
