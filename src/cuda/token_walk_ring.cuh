// SPDX-License-Identifier: Apache-2.0
// What a warp of the walk reads, in order, and its ring in shared memory through which it comes
// (token_walk.h). Device code for Hopper and later.
//
// The list is the same for the copies, which run ahead, and for the warp that computes. A linear
// layer's rows are dealt to blocks in pairs; kColumnWarps warps share a pair, each with its range
// of the columns, in pieces of kPieceColumns: a block's warps end together, and blocks as near to
// each other as pairs are small. Attention's pages go round the warps.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/token_walk_args.h"
#include "tensor/kv_format.h"

namespace spillway::cuda {

inline constexpr int kWalkWarps = 8;
inline constexpr int kWalkThreads = 32 * kWalkWarps;
inline constexpr int kColumnWarps = 4;
inline constexpr int kRowWarps = kWalkWarps / kColumnWarps;
inline constexpr int kPieceColumns = 1024;
inline constexpr int kPieceRowBytes = 2 * kPieceColumns;
inline constexpr int kStageBytes = 2 * kPieceRowBytes;  // a page of 16 tokens and 128 elements too

#if __CUDA_ARCH__ >= 900

// Where the token is, and how attention is dealt to blocks: items of one kv head, up to G of its
// queries and a run of pages.
struct WalkToken {
  int position;
  int32_t block;          // of KV, that it is written to
  int first_token;        // that it sees
  int first_page, pages;  // that it sees; it is written to the last
  int pages_per_part, parts;
  int query_chunks;  // per kv head
  int items;

  template <int G>
  __device__ static WalkToken of(const WalkSequence& s, int blocks) {
    WalkToken t = {};
    if (s.position == nullptr) return t;
    t.position = *s.position;
    t.block = s.block_table[t.position / kKvBlockTokens];
    if (s.heads == 0) return t;
    t.first_token = s.window > 0 ? max(0, t.position + 1 - s.window) : 0;
    t.first_page = t.first_token / kKvBlockTokens;
    t.pages = t.position / kKvBlockTokens - t.first_page + 1;
    t.query_chunks = (s.heads / s.kv_heads + G - 1) / G;
    // Two pages per warp are worth a block of their own.
    const int rows = s.kv_heads * t.query_chunks;
    const int wanted = (t.pages + 2 * kWalkWarps - 1) / (2 * kWalkWarps);
    const int most = max(1, min(wanted, blocks / rows));
    t.pages_per_part = (t.pages + most - 1) / most;
    t.parts = (t.pages + t.pages_per_part - 1) / t.pages_per_part;
    t.items = rows * t.parts;
    return t;
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
__device__ __forceinline__ RowPair pair_of(const WalkPhase& phase, bool interleaved, int index) {
  if (phase.kind == WalkKind::kGated) return {0, {index, index}};
  int part = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int here = (phase.n[i] + 1) / 2;
    if (part == i && index >= here && phase.n[i + 1] > 0) {
      index -= here;
      part = i + 1;
    }
  }
  if (phase.kind == WalkKind::kAppend && part < 2 && !interleaved) {
    const int row = index / (D / 2) * D + index % (D / 2);
    return {part, {row, row + D / 2}};
  }
  return {part, {2 * index, 2 * index + 1}};
}

// The pairs of a phase that are this block's: first + i * gridDim.x for i < count.
struct BlockPairs {
  int first, count;
  __device__ __forceinline__ explicit BlockPairs(const WalkPhase& phase) {
    const int from_first = static_cast<int>(blockIdx.x) - phase.first_block;
    first = from_first < 0 ? from_first + static_cast<int>(gridDim.x) : from_first;
    count = phase.pairs + (first < phase.more ? 1 : 0);
  }
  __device__ __forceinline__ int operator[](int i) const {
    return first + i * static_cast<int>(gridDim.x);
  }
};

// The columns of a warp.
struct WarpColumns {
  int first, count;
  __device__ __forceinline__ explicit WarpColumns(int k) {
    const int each = (k / 8 + kColumnWarps - 1) / kColumnWarps * 8;
    first = static_cast<int>(threadIdx.x) / 32 % kColumnWarps * each;
    count = max(0, min(each, k - first));
  }
};
// The first of the block's pairs that is this warp's; the next are kRowWarps apart.
__device__ __forceinline__ int first_pair() {
  return static_cast<int>(threadIdx.x) / 32 / kColumnWarps;
}

// One warp's ring.
template <int D>
class WalkRing {
 public:
  // `memory`: stages * kStageBytes, `barriers`: stages words; both of this warp.
  __device__ WalkRing(const Walk& walk, const WalkToken& token, uint8_t* memory, uint64_t* barriers)
      : walk_(walk),
        token_(token),
        memory_(memory),
        barriers_(shared32(barriers)),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32) {
    if (lane_ == 0) {
      for (int i = 0; i < walk.stages; ++i) init_barrier(barriers_ + 8 * i, 1);
      publish_barriers();
    }
    __syncwarp();
    next_phase();
    for (int i = 0; i < walk.stages; ++i) copy_next(i);
  }

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
        "l"(from), "r"(bytes), "r"(barriers_ + 8 * stage), "l"(read_once())
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
    at_ = 0;
    if (--left_ == 0) return next_phase();
    index_ += kRowWarps * static_cast<int>(gridDim.x);
    if (stride_ == 0) return set_rows(walk_.phases[phase_]);
    row_[0] += stride_;
    row_[1] += stride_;
  }

  __device__ __forceinline__ void copy_page(int stage) {
    const WalkSequence& s = walk_.sequence;
    constexpr int kBytes = kKvBlockTokens * D * 2;
    if (lane_ == 0) {
      const std::byte* const from =
          (is_v_ ? row_[1] : row_[0]) + __ldg(s.block_table + at_) * s.block_bytes;
      arrive_and_expect(barriers_ + 8 * stage, kBytes);
      copy(stage, 0, from, kBytes);
    }
    is_v_ = !is_v_;
    if (is_v_) return;
    at_ += kWalkWarps;
    if (--left_ > 0) return;
    index_ += gridDim.x;
    if (!find_item()) next_phase();
  }

  // Of pair `index_`.
  __device__ __forceinline__ void set_rows(const WalkPhase& phase) {
    const RowPair pair = pair_of<D>(phase, walk_.sequence.interleaved, index_);
    const bool gated = phase.kind == WalkKind::kGated;
    const int last = phase.n[pair.part] - 1;  // of an odd number of rows the last is read twice
    const int64_t bytes = 2 * static_cast<int64_t>(phase.k), first = 2 * WarpColumns(phase.k).first;
    row_[0] = phase.w[pair.part] + pair.row[0] * bytes + first;
    row_[1] = phase.w[gated ? 1 : pair.part] + min(pair.row[1], last) * bytes + first;
  }
  // The next item, from `index_` on, with pages that do not change and are this warp's.
  __device__ __forceinline__ bool find_item() {
    for (; index_ < token_.items; index_ += gridDim.x) {
      const int part = index_ % token_.parts;
      left_ = (token_.part_full_pages(part) - warp_ + kWalkWarps - 1) / kWalkWarps;
      if (left_ <= 0) continue;
      const int head = index_ / token_.parts / token_.query_chunks;
      const WalkPhase& phase = walk_.phases[phase_];
      const int64_t page = static_cast<int64_t>(head) * (kKvBlockTokens * D * 2);
      row_[0] = phase.out[1] + page;
      row_[1] = phase.out[2] + page;
      at_ = token_.first_page + part * token_.pages_per_part + warp_;
      is_v_ = false;
      return true;
    }
    return false;
  }
  __device__ __forceinline__ void next_phase() {
    while (++phase_ < walk_.count) {
      const WalkPhase& phase = walk_.phases[phase_];
      is_attention_ = phase.kind == WalkKind::kAttention;
      if (is_attention_) {
        index_ = blockIdx.x;
        if (find_item()) return;
        continue;
      }
      const BlockPairs pairs(phase);
      left_ = (pairs.count - first_pair() + kRowWarps - 1) / kRowWarps;
      row_bytes_ = 2 * WarpColumns(phase.k).count;
      if (left_ <= 0 || row_bytes_ <= 0) continue;
      index_ = pairs[first_pair()];
      // Pairs of one matrix, or of gate and up, are as far apart as they are in number.
      const int rows = phase.kind == WalkKind::kGated ? 1 : 2;
      const bool even = phase.kind == WalkKind::kGated ||
                        (phase.kind == WalkKind::kLinear && phase.n[1] == 0 && phase.n[0] % 2 == 0);
      stride_ = even ? int64_t{2} * phase.k * rows * kRowWarps * static_cast<int>(gridDim.x) : 0;
      at_ = 0;
      return set_rows(phase);
    }
  }

  const Walk& walk_;
  const WalkToken& token_;
  uint8_t* memory_;
  uint32_t barriers_;
  int lane_, warp_;
  int stage_ = 0;
  uint32_t parity_ = 0;
  // Where the copies are.
  int phase_ = -1;
  int index_ = 0;            // the pair, or attention's item
  int left_ = 0;             // pairs of this phase or pages of this item
  int at_ = 0;               // bytes of a row, or the page
  int row_bytes_ = 0;        // of this warp's columns
  int64_t stride_ = 0;       // to the next pair; 0: it has to be looked up
  const std::byte* row_[2];  // of the pair, or the head's pages of K and V
  bool is_attention_ = false, is_v_ = false;
};

#endif

}  // namespace spillway::cuda
