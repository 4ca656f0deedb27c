// SPDX-License-Identifier: Apache-2.0
// Computes one warp's tokens of decode attention over F16 or BF16 KV where partitions may be long:
// the thread block goes over its partition in up to four rounds, and a warp takes 32 tokens in
// each.
//
// With several queries, the sums that a partition stores for merging are large compared with the KV
// that it reads, and a thread block that starts or ends has no loads in flight for long. So the
// buffers of attention_decode_mma.cuh become a ring across rounds: a page that has been read makes
// room for the one kBuffers later, even if that belongs to the next round.
//
// With a unified maximum, the sums of rounds are just added (FlashDecoding++, section 3). A round
// that is not in its range, and every round without one, may raise the reference that the sums are
// relative to.
#pragma once

#include "cuda/attention/attention_decode_mma.cuh"
#include "cuda/attention/attention_long_place.cuh"

namespace spillway::cuda {

template <KvType kType, int kDim, int kBuffers, bool kUnified>
requires(is_half(kType)) struct WarpPart<kType, kDim, kBuffers, kUnified, true>
    : WarpPart<kType, kDim, kBuffers, kUnified, false> {
  static_assert(kBuffers <= 4, "pages of a turn: no more than one turn ahead");
  using OneTurn = WarpPart<kType, kDim, kBuffers, kUnified, false>;
  using Shape = typename OneTurn::Shape;
  using Shared = typename OneTurn::Shared;
  using Elements = typename OneTurn::Elements;
  using Place = LongPartPlace;
  using OneTurn::a, OneTurn::p, OneTurn::shared, OneTurn::warp, OneTurn::lane, OneTurn::g;
  using OneTurn::k_plane, OneTurn::v_plane;
  using OneTurn::t, OneTurn::base, OneTurn::empty, OneTurn::out, OneTurn::sums, OneTurn::exponents;
  static constexpr int kTurnTokens = kDecodeWarps * kWarpTokens;
  static constexpr int kMostTurns = 4;

  // Lane 2 * i + n loads block n of round i, so that no round waits for a table lookup.
  __device__ __forceinline__ static int own_block() {
    const auto lane = static_cast<int>(threadIdx.x % (2 * kMostTurns));
    return static_cast<int>(threadIdx.x / kWarpSize) * kWarpBlocks +
           (lane >> 1) * (kTurnTokens / kKvBlockTokens) + (lane & 1);
  }
  __device__ __forceinline__ static bool find(const DecodeArgs& a, Place& p) {
    return find_place<1>(a, p, own_block());
  }

  int last;        // the end of the partition, or of the row if that comes first
  int32_t blocks;  // lanes 0 and 1 have this round's, 2 and 3 the next one's
  int first_slot;  // the buffer of this round's first page

  __device__ __forceinline__ WarpPart(const DecodeArgs& args, const Place& place, Shared& s)
      : OneTurn(args, place, s) {
    // Computed from bits: division of signed numbers takes more instructions.
    lane = static_cast<int>(threadIdx.x % kWarpSize);
    warp = static_cast<int>(threadIdx.x / kWarpSize);
    g = lane >> 2;
    t = lane & 3;
    last = place.last;
    base = place.first + warp * kWarpTokens;
    const int first = place.first + own_block() * kKvBlockTokens;
    blocks = first < last && first + kKvBlockTokens > p.begin ? place.blocks[0] : 0;
    while (base + kWarpTokens <= p.begin && base < last) next_turn();
    empty = base >= last;
    first_slot = 0;
  }
  __device__ __forceinline__ void next_turn() {
    base += kTurnTokens;
    blocks = __shfl_down_sync(kAllLanes, blocks, 2);
  }
  __device__ __forceinline__ bool is_whole() const {
    return base >= p.begin && base + kWarpTokens <= last;
  }

  // Returns the place of page i: this round's keys 0, keys 1, values 0, values 1; then those of the
  // next round.
  __device__ __forceinline__ std::byte* page(int i) const {
    int slot = i % kBuffers;
    if constexpr (4 % kBuffers != 0) {
      slot += first_slot;
      if (slot >= kBuffers) slot -= kBuffers;
    }
    return shared.pages[warp] + slot * Shape::kPageBytes;
  }

  template <bool kWhole>
  __device__ __forceinline__ void copy_page(int i) const {
    const int n = i % 2, first = base + i / 4 * kTurnTokens + n * kKvBlockTokens;
    const auto block = static_cast<uint32_t>(__shfl_sync(kAllLanes, blocks, i / 4 * 2 + n));
    const auto in_block = static_cast<uint32_t>(p.kv_head * a.page_bytes + lane * 16);
    const std::byte* from = (i % 4 < 2 ? k_plane : v_plane) +
                            uint64_t{block} * static_cast<uint32_t>(a.block_bytes) + in_block;
    constexpr unsigned kChunks = Shape::kRowBytes / 16;
    constexpr int kCopies = kKvBlockTokens * kChunks / kWarpSize;
    // If dims are a power of two, a lane has the same place in every kStep-th row: constants lead
    // from one to the next, which saves registers.
    constexpr bool kSamePlace = kWarpSize % kChunks == 0;
    constexpr int kStep = kWarpSize / kChunks;
    const auto place = [&](int c) {
      const auto index = static_cast<unsigned>(c * kWarpSize + lane);
      return static_cast<int>(index / kChunks * Shape::kPitch + index % kChunks * 16);
    };
    std::byte* to = page(i) + (kSamePlace ? place(0) : 0);
#pragma unroll(kWhole ? kCopies : 1)
    for (int c = 0; c < kCopies; ++c) {
      // Memory that no token has written may hold anything, NaN too: it is replaced by zeros.
      const int row =
          first + static_cast<int>(static_cast<unsigned>(c * kWarpSize + lane) / kChunks);
      copy_async16<true>(to + (kSamePlace ? c * kStep * Shape::kPitch : place(c)),
                         from + c * kWarpSize * 16, kWhole || (row >= p.begin && row < last));
    }
  }
  // Issues the copy of page i, as a group of its own.
  __device__ __forceinline__ void send_page(int i, bool whole) const {
    if (whole) {
      copy_page<true>(i);
    } else {
      copy_page<false>(i);
    }
    commit_copies();
  }
  // Issues all copies that there is room for; all of them belong to the first round.
  __device__ __forceinline__ void start() const {
    if (empty) return;
    const bool whole = is_whole();
#pragma unroll
    for (int i = 0; i < kBuffers; ++i) send_page(i, whole);
  }
  // Waits until the next page has arrived. After it, all but one of the buffers are in flight, or
  // empty groups at the end.
  __device__ __forceinline__ void wait_page() const {
    wait_copies<kBuffers - 1>();
    __syncwarp();
  }
  // Called when page kPage has been read: issues the copy that takes its place. `more`: there is
  // another round.
  template <int kPage>
  __device__ __forceinline__ void replace_page(bool more) const {
    constexpr int kNext = kPage + kBuffers;
    __syncwarp();
    if constexpr (kNext < 4) {
      send_page(kNext, is_whole());
    } else if (more) {
      // Only the first round may lack tokens at its beginning.
      send_page(kNext, base + kTurnTokens + kWarpTokens <= last);
    } else {
      commit_copies();
    }
  }

  // The scores of page n: [0], [1] are queries 2 t and 2 t + 1 with its token g, [2], [3] with
  // token g + 8.
  float score[2][4];

  __device__ __forceinline__ void score_page(int n) {
    const std::byte* keys = page(n) + (lane & 15) * Shape::kPitch + (lane >> 4) * 16;
    const __half* queries = &shared.queries[lane & 7][lane >> 3 << 3];
#pragma unroll
    for (int j = 0; j < 4; ++j) score[n][j] = 0;
#pragma unroll
    for (int d = 0; d < kDim; d += 32) {
      uint32_t q[4];
      load_matrices(q, queries + d);
#pragma unroll
      for (int half = 0; half < 2 && d + 16 * half < kDim; ++half) {
        uint32_t k[4];
        load_matrices(k, keys + 2 * (d + 16 * half));
        Elements::mma(score[n], k[0], k[1], k[2], k[3], q[2 * half], q[2 * half + 1]);
      }
    }
  }

  float reference[2];  // exponentials of queries 2 t and 2 t + 1 are relative to it

  __device__ __forceinline__ bool exists(int e) const { return 2 * t + e < p.queries; }

  // Does the same as in_unified_range(), with the `largest` of this lane's scores.
  __device__ __forceinline__ bool in_range(const float (&largest)[2]) const {
    bool above = false, reached = true;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      above |= exists(e) && !(largest[e] < a.high);
      unsigned some = __ballot_sync(kAllLanes, !exists(e) || largest[e] > a.low);
      some |= some >> 16;
      some |= some >> 8;
      some |= some >> 4;
      reached = reached && (some & 0xfU) == 0xfU;
    }
    return !__any_sync(kAllLanes, above) && reached;
  }

  // Turns scores into exponentials, and makes the sums of earlier rounds relative to the same
  // reference. Returns whether this round used a maximum of its own instead of the
  // unified one.
  __device__ __forceinline__ bool exponentiate(bool first_turn) {
    if (!is_whole()) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int position = base + 8 * i + g;
        if (position < p.begin || position >= last)
          score[i / 2][i % 2 * 2] = score[i / 2][i % 2 * 2 + 1] = -INFINITY;
      }
    }
    float largest[2];
#pragma unroll
    for (int e = 0; e < 2; ++e)
      largest[e] = a.scale_log2 *
                   fmaxf(fmaxf(score[0][e], score[0][2 + e]), fmaxf(score[1][e], score[1][2 + e]));
    bool own = false;
    if (!kUnified || !in_range(largest)) {
      own = true;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int step = 4; step < kWarpSize; step *= 2)
          largest[e] = fmaxf(largest[e], __shfl_xor_sync(kAllLanes, largest[e], step));
        largest[e] -= kTopExponent;
      }
    } else {
      largest[0] = largest[1] = a.reference;
    }
    if (first_turn) {
      reference[0] = largest[0];
      reference[1] = largest[1];
    } else if (__any_sync(kAllLanes, (exists(0) && largest[0] > reference[0]) ||
                                         (exists(1) && largest[1] > reference[1]))) {
      raise_references(largest);
    }
    const float first = reference[0] == -INFINITY ? 0 : reference[0];
    const float second = reference[1] == -INFINITY ? 0 : reference[1];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const float* x = &score[i / 2][i % 2 * 2];
      exponents[i] = transposed(Elements::pack(exp2_fast(fmaf(x[0], a.scale_log2, -first)),
                                               exp2_fast(fmaf(x[1], a.scale_log2, -second))));
    }
    return own;
  }
  __device__ __forceinline__ void raise_references(const float (&to)[2]) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float before = reference[e];
      reference[e] = fmaxf(before, to[e]);
      const float change = before == reference[e] ? 1 : exp2_fast(before - reference[e]);
#pragma unroll
      for (int m = 0; m < Shape::kDimTiles; ++m) {
        out[m][e] *= change;
        out[m][2 + e] *= change;
      }
      sums[e] *= change;
    }
  }

  // Called with copies in flight and queries in shared memory. Stores sums of exponentials and
  // weighted values in shared memory. Returns whether they are relative to a maximum of the warp's
  // own.
  __device__ __forceinline__ bool finish() {
    bool own = false, first_turn = true;
#pragma unroll
    for (int m = 0; m < Shape::kDimTiles; ++m) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[m][j] = 0;
    }
    sums[0] = sums[1] = 0;
    reference[0] = reference[1] = -INFINITY;
    bool more = !empty;
#pragma unroll 1
    while (more) {
      more = base + kTurnTokens < last;
      wait_page();
      score_page(0);
      replace_page<0>(more);
      wait_page();
      score_page(1);
      replace_page<1>(more);
      own |= exponentiate(first_turn);
      // The lower rows would get the same sums again, and keeping them takes registers.
      constexpr uint32_t kOnes = Elements::kOnes;
      sums[2] = sums[3] = 0;
      Elements::mma(sums, kOnes, 0, kOnes, 0, exponents[0], exponents[1]);
      Elements::mma(sums, kOnes, 0, kOnes, 0, exponents[2], exponents[3]);
      wait_page();
      this->template add_half_values<0>(page(2));
      replace_page<2>(more);
      wait_page();
      this->template add_half_values<1>(page(3));
      replace_page<3>(more);
      next_turn();
      if (++first_slot == kBuffers) first_slot = 0;
      first_turn = false;
    }
    __syncwarp();  // outputs reuse the memory of the pages
    if (g == 0) {
      shared.references[warp][2 * t] = reference[0];
      shared.references[warp][2 * t + 1] = reference[1];
    }
    this->store_sums();
    return own;
  }
};

}  // namespace spillway::cuda
