// SPDX-License-Identifier: Apache-2.0
// What each warp of the walk reads, and in which order (token_walk.h). For kernels as well (relaxed
// constexpr).
//
// A linear layer's rows are dealt to blocks in pairs; kColumnWarps warps share a pair, each with
// its range of the columns, in pieces of kPieceColumns: a block's warps end together, and blocks as
// near to each other as pairs are small. Attention's pages go round the warps of the block that has
// their part. WalkCursor goes through all of it for the copies, which run ahead; the warp that
// computes goes phase by phase, with the same functions.
#pragma once

#include <cstddef>
#include <cstdint>

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

// By value. lesser() takes references, and in a kernel a constant of a namespace has no address:
// the compiler says nothing and makes that path a trap.
constexpr int lesser(int a, int b) { return a < b ? a : b; }
constexpr int greater(int a, int b) { return a < b ? b : a; }

// Which warp, of all.
struct WalkSeat {
  int block, blocks;
  int warp;  // of the block
};

// Where the token is, and how attention is dealt to blocks: items of one kv head, up to
// `chunk` of its queries and a run of pages.
struct WalkToken {
  int position;
  int32_t block;          // of KV, that it is written to
  int first_token;        // that it sees
  int first_page, pages;  // that it sees; it is written to the last
  int pages_per_part, parts;
  int query_chunks;  // per kv head
  int items;

  static constexpr WalkToken of(const Walk& walk, int chunk, int blocks) {
    const WalkSequence& s = walk.sequence;
    const WalkAttends& attends = walk.attends;
    WalkToken t = {};
    if (s.position == nullptr) return t;
    t.position = *s.position;
    t.block = s.block_table[t.position / kKvBlockTokens];
    if (attends.heads == 0) return t;
    t.first_token = attends.window > 0 ? greater(0, t.position + 1 - attends.window) : 0;
    t.first_page = t.first_token / kKvBlockTokens;
    t.pages = t.position / kKvBlockTokens - t.first_page + 1;
    t.query_chunks = (attends.heads / attends.kv_heads + chunk - 1) / chunk;
    // Two pages per warp are worth a block of their own.
    const int rows = attends.kv_heads * t.query_chunks;
    const int wanted = (t.pages + 2 * kWalkWarps - 1) / (2 * kWalkWarps);
    const int most = greater(1, lesser(wanted, blocks / rows));
    t.pages_per_part = (t.pages + most - 1) / most;
    t.parts = (t.pages + t.pages_per_part - 1) / t.pages_per_part;
    t.items = rows * t.parts;
    return t;
  }
  constexpr int part_pages(int part) const {
    return lesser(pages_per_part, pages - part * pages_per_part);
  }
  // Those of them that do not change in this step.
  constexpr int part_full_pages(int part) const {
    return part_pages(part) - (part == parts - 1 ? 1 : 0);
  }
};

// A pair of rows: of one matrix or, of a gated layer, of both.
struct RowPair {
  int part;
  int row[2];
};

template <int D>
constexpr RowPair pair_of(const WalkPhase& phase, bool interleaved, int index) {
  if (phase.kind == WalkKind::kGated) return {0, {index, index}};
  int part = 0;
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

// The pairs of a phase that are a block's: first + i * blocks for i < count. Warps of its first
// kColumnWarps take those of even i, the others those of odd i.
struct BlockPairs {
  int first, count, blocks;
  constexpr BlockPairs(const WalkPhase& phase, const WalkSeat& seat) : blocks(seat.blocks) {
    const int from_first = seat.block - phase.first_block;
    first = from_first < 0 ? from_first + blocks : from_first;
    count = phase.pairs + (first < phase.more ? 1 : 0);
  }
  constexpr int operator[](int i) const { return first + i * blocks; }
};
constexpr int first_pair(int warp) { return warp / kColumnWarps; }

// The columns of a warp.
struct WarpColumns {
  int first, count;
  constexpr WarpColumns(int k, int warp) {
    const int each = (k / 8 + kColumnWarps - 1) / kColumnWarps * 8;
    first = warp % kColumnWarps * each;
    count = greater(0, lesser(each, k - first));
  }
};

// Goes through all that a warp reads, from the first phase to the last.
template <int D>
class WalkCursor {
 public:
  static constexpr int kPageBytes = kKvBlockTokens * D * 2;

  constexpr WalkCursor(const Walk& walk, const WalkToken& token, const WalkSeat& seat)
      : walk_(walk), token_(token), seat_(seat) {
    next_phase();
  }

  constexpr bool at_end() const { return phase_ >= walk_.count; }
  // What is read now: of two rows, or a page.
  constexpr bool is_page() const { return is_attention_; }
  constexpr int bytes() const {
    return is_attention_ ? kPageBytes : lesser(kPieceRowBytes, row_bytes_ - at_);
  }
  constexpr const std::byte* row(int i) const { return (i == 0 ? row_[0] : row_[1]) + at_; }
  constexpr const std::byte* page() const {
    const WalkSequence& s = walk_.sequence;
    return (is_v_ ? row_[1] : row_[0]) + s.block_table[at_] * s.block_bytes;
  }

  constexpr void advance() {
    if (is_attention_) return advance_page();
    at_ += bytes();
    if (at_ < row_bytes_) return;
    at_ = 0;
    if (--left_ == 0) return next_phase();
    index_ += kRowWarps * seat_.blocks;
    if (stride_ == 0) return set_rows(walk_.phases[phase_]);
    row_[0] += stride_;
    row_[1] += stride_;
  }

 private:
  constexpr void advance_page() {
    is_v_ = !is_v_;
    if (is_v_) return;
    at_ += kWalkWarps;
    if (--left_ > 0) return;
    index_ += seat_.blocks;
    if (!find_item()) next_phase();
  }

  // Of pair `index_`.
  constexpr void set_rows(const WalkPhase& phase) {
    const RowPair pair = pair_of<D>(phase, walk_.appends.interleaved, index_);
    const bool gated = phase.kind == WalkKind::kGated;
    const int last = phase.n[pair.part] - 1;  // of an odd number of rows the last is read twice
    const int64_t bytes = 2 * static_cast<int64_t>(phase.k);
    const int64_t first = 2 * WarpColumns(phase.k, seat_.warp).first;
    row_[0] = phase.w[pair.part] + pair.row[0] * bytes + first;
    row_[1] = phase.w[gated ? 1 : pair.part] + lesser(pair.row[1], last) * bytes + first;
  }

  // The next item, from `index_` on, with pages that do not change and are this warp's.
  constexpr bool find_item() {
    for (; index_ < token_.items; index_ += seat_.blocks) {
      const int part = index_ % token_.parts;
      left_ = (token_.part_full_pages(part) - seat_.warp + kWalkWarps - 1) / kWalkWarps;
      if (left_ <= 0) continue;
      const int head = index_ / token_.parts / token_.query_chunks;
      const WalkPhase& phase = walk_.phases[phase_];
      const int64_t page = static_cast<int64_t>(head) * kPageBytes;
      row_[0] = phase.out[1] + page;
      row_[1] = phase.out[2] + page;
      at_ = token_.first_page + part * token_.pages_per_part + seat_.warp;
      is_v_ = false;
      return true;
    }
    return false;
  }

  // The first piece of the next phase that has any for this warp.
  constexpr void next_phase() {
    while (++phase_ < walk_.count) {
      const WalkPhase& phase = walk_.phases[phase_];
      is_attention_ = phase.kind == WalkKind::kAttention;
      if (is_attention_) {
        index_ = seat_.block;
        if (find_item()) return;
        continue;
      }
      const BlockPairs pairs(phase, seat_);
      const int first = first_pair(seat_.warp);
      left_ = (pairs.count - first + kRowWarps - 1) / kRowWarps;
      row_bytes_ = 2 * WarpColumns(phase.k, seat_.warp).count;
      if (left_ <= 0 || row_bytes_ <= 0) continue;
      index_ = pairs[first];
      // Pairs of one matrix, or of gate and up, are as far apart as they are in number.
      const bool gated = phase.kind == WalkKind::kGated;
      const bool even =
          gated || (phase.kind == WalkKind::kLinear && phase.n[1] == 0 && phase.n[0] % 2 == 0);
      stride_ = even ? int64_t{2} * phase.k * (gated ? 1 : 2) * kRowWarps * seat_.blocks : 0;
      at_ = 0;
      return set_rows(phase);
    }
  }

  const Walk& walk_;
  const WalkToken& token_;
  WalkSeat seat_;
  int phase_ = -1;
  int index_ = 0;                 // the pair, or attention's item
  int left_ = 0;                  // pairs of this phase, or pages of this item
  int at_ = 0;                    // bytes of a row, or the page
  int row_bytes_ = 0;             // of this warp's columns
  int64_t stride_ = 0;            // to the next pair; 0: it has to be looked up
  const std::byte* row_[2] = {};  // of the pair, or the head's pages of K and V
  bool is_attention_ = false, is_v_ = false;
};

}  // namespace spillway::cuda
