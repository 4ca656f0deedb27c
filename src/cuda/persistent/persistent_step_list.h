// SPDX-License-Identifier: Apache-2.0
// Defines what each warp of the persistent step reads, and in which order (persistent_step.h).
// Kernels use it as well (relaxed constexpr).
//
// Rows of F16 or BF16 are dealt to thread blocks in pairs. kColumnWarps warps share a pair, each
// with its range of the columns, in pieces of kPieceColumns: so the warps of a thread block end
// together, and thread blocks end nearly together because pairs are small. Packed rows
// (tensor/packed_layout.h) come in groups of 16, and all warps share a group. Attention's pages go
// round-robin to the warps of the thread block that computes their KV partition. StepCursor goes
// through all of this for the copies, which run ahead; the warp that computes goes phase by phase
// with the same functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/persistent/persistent_step_args.h"
#include "tensor/kv_format.h"
#include "tensor/quant_blocks.h"
#include "tensor/tensor_view.h"

namespace spillway::cuda {

inline constexpr int kStepWarps = 8;
inline constexpr int kStepThreads = 32 * kStepWarps;
inline constexpr int kColumnWarps = 4;
inline constexpr int kRowWarps = kStepWarps / kColumnWarps;
inline constexpr int kPieceColumns = 1024;
inline constexpr int kPieceRowBytes = 2 * kPieceColumns;
inline constexpr int kMostPageBytes = kKvBlockTokens * 128 * 2;  // fits a stage of every ring

// Takes its arguments by value. std::min() takes references, and in a kernel a namespace-scope
// constant has no address: the compiler gives no warning and turns that path into a trap.
constexpr int lesser(int a, int b) { return a < b ? a : b; }
constexpr int greater(int a, int b) { return a < b ? b : a; }

// The place of a warp in the grid.
struct GridSeat {
  int block, blocks;
  int warp;  // index in its thread block
};

// The token's position, and how attention is dealt to thread blocks: an item is one kv head, up to
// `chunk` of its queries, and a run of pages (a KV partition).
struct StepToken {
  int position;
  int32_t block;          // the KV block that the token is written to
  int first_token;        // the first token that it attends to
  int first_page, pages;  // that it attends to; the token is written to the last one
  int pages_per_part, parts;
  int query_chunks;  // per kv head
  int items;

  static constexpr StepToken of(const StepPhases& step, int chunk, int blocks) {
    const PhaseSequence& s = step.sequence;
    const PhaseAttends& attends = step.attends;
    StepToken t = {};
    if (s.position == nullptr) return t;
    t.position = *s.position;
    t.block = s.block_table[t.position / kKvBlockTokens];
    if (attends.heads == 0) return t;
    t.first_token = attends.window > 0 ? greater(0, t.position + 1 - attends.window) : 0;
    t.first_page = t.first_token / kKvBlockTokens;
    t.pages = t.position / kKvBlockTokens - t.first_page + 1;
    t.query_chunks = (attends.heads / attends.kv_heads + chunk - 1) / chunk;
    // KV is split into one partition per two pages of each warp, as far as there are thread blocks.
    const int rows = attends.kv_heads * t.query_chunks;
    const int wanted = (t.pages + 2 * kStepWarps - 1) / (2 * kStepWarps);
    const int most = greater(1, lesser(wanted, blocks / rows));
    t.pages_per_part = (t.pages + most - 1) / most;
    t.parts = (t.pages + t.pages_per_part - 1) / t.pages_per_part;
    t.items = rows * t.parts;
    return t;
  }
  constexpr int part_pages(int part) const {
    return lesser(pages_per_part, pages - part * pages_per_part);
  }
  // Returns how many of these pages do not change in this step.
  constexpr int part_full_pages(int part) const {
    return part_pages(part) - (part == parts - 1 ? 1 : 0);
  }
};

// A pair of rows, both of one matrix or, in a gated layer, one of gate and one of up.
struct RowPair {
  int part;
  int row[2];
};

template <int D>
constexpr RowPair pair_of(const StepPhase& phase, bool interleaved, int index) {
  if (phase.kind == PhaseKind::kGated) return {0, {index, index}};
  int part = 0;
  for (int i = 0; i < 2; ++i) {
    const int here = (phase.n[i] + 1) / 2;
    if (part == i && index >= here && phase.n[i + 1] > 0) {
      index -= here;
      part = i + 1;
    }
  }
  if (phase.kind == PhaseKind::kAppend && part < 2 && !interleaved) {
    const int row = index / (D / 2) * D + index % (D / 2);
    return {part, {row, row + D / 2}};
  }
  return {part, {2 * index, 2 * index + 1}};
}

// The pairs of rows, or sets of groups, of a phase that one thread block computes: first + i * step
// for i < count. Its first kColumnWarps warps take the pairs with even i, the others those with odd
// i.
//
// Pairs are dealt round-robin, so that what thread blocks read at a time lies close together (H200:
// F16 1%, Q4_0 2%, Q8_0 6% faster than with a contiguous range for each). All thread blocks get
// equally many, though some multiprocessors read faster (12 of 132 finish 15% sooner): once these
// have finished, the others read faster, and the next phase's weights are already being copied to
// the finished ones. When pairs were dealt by measured speed, steps were 3% slower.
struct BlockPairs {
  int first, step, count;
  constexpr BlockPairs(const StepPhase& phase, const GridSeat& seat)
      : first(seat.block),
        step(seat.blocks),
        count((phase.pairs - first + step - 1) / step) {}  // 0 if there are fewer pairs than blocks
  constexpr int operator[](int i) const { return first + i * step; }
};
constexpr int first_pair(int warp) { return warp / kColumnWarps; }

// The range of columns that a warp multiplies.
struct WarpColumns {
  int first, count;
  constexpr WarpColumns(int k, int warp) {
    const int each = (k / 8 + kColumnWarps - 1) / kColumnWarps * 8;
    first = warp % kColumnWarps * each;
    count = greater(0, lesser(each, k - first));
  }
};

// Iterates over a warp's pairs of rows as they are copied into its ring: a piece is two copies of
// up to kPieceRowBytes.
template <int D>
class PairPieces {
 public:
  static constexpr int kCopies = 2;
  static constexpr int kCopyBytes = kPieceRowBytes;  // offset of the second copy in a stage
  static constexpr int kStageBytes = kCopies * kCopyBytes;
  static_assert(kStageBytes >= kMostPageBytes);

  // Goes to the first piece of a phase. Returns false if this warp has none.
  constexpr bool begin(const StepPhases& step, const StepPhase& phase, const GridSeat& seat) {
    const BlockPairs pairs(phase, seat);
    const int first = first_pair(seat.warp);
    left_ = (pairs.count - first + kRowWarps - 1) / kRowWarps;
    row_bytes_ = 2 * WarpColumns(phase.k, seat.warp).count;
    if (left_ <= 0 || row_bytes_ == 0) return false;
    index_ = pairs[first];
    index_step_ = kRowWarps * pairs.step;
    // The distance from one pair to the next is constant within one matrix, and in gate and up.
    const bool gated = phase.kind == PhaseKind::kGated;
    const bool even =
        gated || (phase.kind == PhaseKind::kLinear && phase.n[1] == 0 && phase.n[0] % 2 == 0);
    stride_ = even ? int64_t{2} * phase.k * (gated ? 1 : 2) * index_step_ : 0;
    at_ = 0;
    set_rows(step, phase, seat);
    return true;
  }

  constexpr int bytes() const { return lesser(kPieceRowBytes, row_bytes_ - at_); }
  constexpr const std::byte* from(int copy) const { return (copy == 0 ? row_[0] : row_[1]) + at_; }

  // Goes to the next piece. Returns false after the phase's last one.
  constexpr bool advance(const StepPhases& step, const StepPhase& phase, const GridSeat& seat) {
    at_ += bytes();
    if (at_ < row_bytes_) return true;
    at_ = 0;
    if (--left_ == 0) return false;
    index_ += index_step_;
    if (stride_ == 0) {
      set_rows(step, phase, seat);
    } else {
      row_[0] += stride_;
      row_[1] += stride_;
    }
    return true;
  }

 private:
  // Sets the addresses of the rows of pair `index_`.
  constexpr void set_rows(const StepPhases& step, const StepPhase& phase, const GridSeat& seat) {
    const RowPair pair = pair_of<D>(phase, step.appends.interleaved, index_);
    const bool gated = phase.kind == PhaseKind::kGated;
    const int last = phase.n[pair.part] - 1;  // if n is odd, the last row is read twice
    const int64_t bytes = 2 * static_cast<int64_t>(phase.k);
    const int64_t first = 2 * WarpColumns(phase.k, seat.warp).first;
    row_[0] = phase.w[pair.part] + pair.row[0] * bytes + first;
    row_[1] = phase.w[gated ? 1 : pair.part] + lesser(pair.row[1], last) * bytes + first;
  }

  int index_ = 0;       // the current pair
  int index_step_ = 0;  // distance to the next pair
  int left_ = 0;        // remaining pairs of this phase
  int at_ = 0;          // offset in a row, in bytes
  int row_bytes_ = 0;   // bytes of this warp's columns in a row
  int64_t stride_ = 0;  // distance to the next pair; 0: it must be looked up
  const std::byte* row_[2] = {};
};

// Packed rows come in groups of 16, which are dealt to thread blocks in sets. A set is one group,
// the groups of gate and up, or the two groups whose rows RoPE rotates with each other.
inline constexpr int kGroupRowCount = static_cast<int>(kGroupRows);
constexpr int set_groups(PhaseKind kind) { return kind == PhaseKind::kLinear ? 1 : 2; }

struct RowGroup {
  int part;  // the matrix
  int row;   // its first row
};
template <int D>
constexpr RowGroup group_of(const StepPhase& phase, bool interleaved, int set, int item) {
  if (phase.kind == PhaseKind::kGated) return {item, kGroupRowCount * set};
  const int groups = set_groups(phase.kind);
  int part = 0;
  for (int i = 0; i < 2; ++i) {
    const int here = phase.n[i] / kGroupRowCount >> (groups - 1);  // no slow division
    // A matrix of another type than the phase's has no rows here.
    if (part == i && set >= here && phase.n[1] + phase.n[2] > 0 && (i == 0 || phase.n[2] > 0)) {
      set -= here;
      part = i + 1;
    }
  }
  if (phase.kind == PhaseKind::kAppend && part < 2 && !interleaved) {
    constexpr int kHeadSets = D / (2 * kGroupRowCount);
    return {part, set / kHeadSets * D + item * (D / 2) + set % kHeadSets * kGroupRowCount};
  }
  return {part, kGroupRowCount * (groups * set + item)};
}

// The range of a group's quantization blocks that a warp multiplies.
template <int kElements>
struct WarpBlocks {
  int first, count;
  constexpr WarpBlocks(int k, int warp) {
    const int all = k / kElements;
    first = all * warp / kStepWarps;
    count = all * (warp + 1) / kStepWarps - first;
  }
};

// How packed groups are copied into a ring: in one copy of as many chunks as make a stage worth its
// barrier.
template <class Block>
struct GroupSizes {
  static constexpr int kElements = Block::kElements;
  static constexpr int kBlockBytes = kGroupRowCount * static_cast<int>(sizeof(Block));
  static constexpr int kChunkBlocks = 256 / kElements;  // as many as products take at a time
  static constexpr int kChunkBytes = kChunkBlocks * kBlockBytes;
  static constexpr int kChunks = kChunkBytes <= 2304 ? 2 : 1;  // per stage
  static constexpr int kStageBlocks = kChunks * kChunkBlocks;
  static constexpr int kMostBytes = kStageBlocks * kBlockBytes;
  constexpr void set(const StepPhase& /*phase*/) {}
  constexpr int block_bytes() const { return kBlockBytes; }
  constexpr int stage_bytes() const { return kMostBytes; }
};
// The same for two types, of which each phase has one.
template <class First, class Second, DType kSecond>
struct MixedSizes {
  static constexpr int kElements = First::kElements;
  static_assert(kElements == Second::kElements);
  static constexpr int kMostBytes =
      greater(GroupSizes<First>::kMostBytes, GroupSizes<Second>::kMostBytes);
  constexpr void set(const StepPhase& phase) { second_ = phase.weights == kSecond; }
  constexpr int block_bytes() const {
    return second_ ? GroupSizes<Second>::kBlockBytes : GroupSizes<First>::kBlockBytes;
  }
  constexpr int stage_bytes() const {
    return second_ ? GroupSizes<Second>::kMostBytes : GroupSizes<First>::kMostBytes;
  }

 private:
  bool second_ = false;
};

template <class Sizes, int D>
class SizedPieces {
 public:
  static constexpr int kCopies = 1;
  static constexpr int kCopyBytes = Sizes::kMostBytes;
  static constexpr int kStageBytes = (greater(kCopyBytes, kMostPageBytes) + 127) / 128 * 128;

  constexpr bool begin(const StepPhases& step, const StepPhase& phase, const GridSeat& seat) {
    const BlockPairs sets(phase, seat);
    sizes_.set(phase);
    left_ = sets.count;
    slice_bytes_ = Blocks(phase.k, seat.warp).count * sizes_.block_bytes();
    if (left_ <= 0 || slice_bytes_ == 0) return false;
    set_ = sets.first;
    set_step_ = sets.step;
    item_ = at_ = 0;
    set_group(step, phase, seat);
    return true;
  }

  constexpr int bytes() const { return lesser(sizes_.stage_bytes(), slice_bytes_ - at_); }
  constexpr const std::byte* from(int /*copy*/) const { return slice_ + at_; }

  constexpr bool advance(const StepPhases& step, const StepPhase& phase, const GridSeat& seat) {
    at_ += bytes();
    if (at_ < slice_bytes_) return true;
    at_ = 0;
    if (++item_ == set_groups(phase.kind)) {
      item_ = 0;
      set_ += set_step_;
      if (--left_ == 0) return false;
    }
    set_group(step, phase, seat);
    return true;
  }

 private:
  using Blocks = WarpBlocks<Sizes::kElements>;
  constexpr void set_group(const StepPhases& step, const StepPhase& phase, const GridSeat& seat) {
    const RowGroup group = group_of<D>(phase, step.appends.interleaved, set_, item_);
    const int64_t group_bytes = int64_t{phase.k} / Sizes::kElements * sizes_.block_bytes();
    slice_ = phase.w[group.part] + group.row / kGroupRowCount * group_bytes +
             Blocks(phase.k, seat.warp).first * sizes_.block_bytes();
  }

  Sizes sizes_;

  int set_ = 0, set_step_ = 0, item_ = 0;
  int left_ = 0;         // sets of this phase
  int at_ = 0;           // bytes of the slice
  int slice_bytes_ = 0;  // bytes of a group that this warp reads
  const std::byte* slice_ = nullptr;
};

template <class Block, int D>
using GroupPieces = SizedPieces<GroupSizes<Block>, D>;

// Iterates over everything that a warp reads, from the first phase to the last. `Pieces` iterates
// over the weights of a linear layer.
template <class Pieces, int D>
class StepCursor {
 public:
  static constexpr int kPageBytes = kKvBlockTokens * D * 2;

  constexpr StepCursor(const StepPhases& step, const StepToken& token, const GridSeat& seat)
      : phases_(step), token_(token), seat_(seat) {
    next_phase();
  }

  constexpr bool at_end() const { return phase_ >= phases_.count; }
  // Returns whether the current read is a page of KV; otherwise it is a piece of weights.
  constexpr bool is_page() const { return is_attention_; }
  constexpr const std::byte* page() const {
    const PhaseSequence& s = phases_.sequence;
    const StepPhase& phase = phases_.phases[phase_];
    return phase.plane(is_v_ ? 2 : 1) + s.block_table[page_] * s.block_bytes +
           static_cast<int64_t>(head_) * kPageBytes;
  }
  constexpr const Pieces& piece() const { return pieces_; }

  constexpr void advance() {
    if (is_attention_) return advance_page();
    if (!pieces_.advance(phases_, phases_.phases[phase_], seat_)) next_phase();
  }

 private:
  constexpr void advance_page() {
    is_v_ = !is_v_;
    if (is_v_) return;
    page_ += kStepWarps;
    if (--left_ > 0) return;
    item_ += seat_.blocks;
    if (!find_item()) next_phase();
  }

  // Goes to the next item, from `item_` on, in which this warp has pages that do not change.
  constexpr bool find_item() {
    for (; item_ < token_.items; item_ += seat_.blocks) {
      const int part = item_ % token_.parts;
      left_ = (token_.part_full_pages(part) - seat_.warp + kStepWarps - 1) / kStepWarps;
      if (left_ <= 0) continue;
      head_ = item_ / token_.parts / token_.query_chunks;
      page_ = token_.first_page + part * token_.pages_per_part + seat_.warp;
      is_v_ = false;
      return true;
    }
    return false;
  }

  // Goes to the first piece of the next phase that has any for this warp.
  constexpr void next_phase() {
    while (++phase_ < phases_.count) {
      const StepPhase& phase = phases_.phases[phase_];
      is_attention_ = phase.kind == PhaseKind::kAttention;
      if (is_attention_) item_ = seat_.block;
      if (is_attention_ ? find_item() : pieces_.begin(phases_, phase, seat_)) return;
    }
  }

  const StepPhases& phases_;
  const StepToken& token_;
  GridSeat seat_;
  Pieces pieces_;
  int phase_ = -1;
  int item_ = 0, head_ = 0, left_ = 0, page_ = 0;  // attention; `left_` pages of this item
  bool is_attention_ = false, is_v_ = false;
};

}  // namespace spillway::cuda
