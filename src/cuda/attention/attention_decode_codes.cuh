// SPDX-License-Identifier: Apache-2.0
// Computes one warp's tokens of decode attention over int8 and int4 KV on tensor cores.
//
// HBM brings four times as many int4 values per clock as halves, so what counts here is the number
// of instructions per value: codes become halves with one logic instruction per pair, which puts an
// exponent in front of the code's bits. That adds a constant to every code. It is removed again as
// the product of the constant and the sum of what the codes are multiplied with; accumulators are
// F32, so this costs 4 to 7 of their 24 bits, and no half is rounded. Scales and minima never touch
// a code either: those of keys multiply finished sums of a token and a group, those of values
// multiply the exponentials that a token's codes are multiplied with. Only int8 keys are turned
// into halves without the constant: there is time for it, and one large element in a key makes its
// scale large, which multiplies the bits that the constant costs.
//
// Nibbles of a word come out as tokens (or dims) 0 and 2, then 1 and 3. So column 2 * t + e of
// score tile i is token 8 * t + pair_token(i, e), which is also what lane (4 * g + t) loads of the
// values: 8 neighbouring tokens. Keys that lanes load together are then two rows apart, so rows lie
// in shared memory with the two lowest bits of their numbers swapped, to use different banks.
//
// Scores: queries are the rows of A, tokens the columns of B. A lane takes 16 bytes of a key; of
// two int4 groups, lanes 0 and 1 of four have the first, lanes 2 and 3 the second. Queries are
// stored twice, in rows 0 to 7 with zeros for the second group, in rows 8 to 15 with zeros for the
// first: one product gives both groups' sums.
#pragma once

#include "cuda/attention/attention_decode_code_queries.cuh"
#include "cuda/attention/code_halves.cuh"

namespace spillway::cuda {

template <KvType kType, int kDim, int kBuffers, bool kUnified>
requires(is_quantized(kType)) struct WarpPart<kType, kDim, kBuffers, kUnified, true> {
  using Shape = DecodeShape<kType, kDim, kBuffers>;
  using Shared = DecodeShared<kType, kDim, kBuffers>;
  static constexpr bool kNibbles = Shape::kNibbles;
  static constexpr int kSteps = Shape::kSteps, kTiles = Shape::kTiles, kGroups = Shape::kGroups;

  using Place = LongPartPlace;
  __device__ __forceinline__ static bool find(const DecodeArgs& a, Place& p) {
    return find_place<Shape::kPages>(a, p,
                                     static_cast<int>(threadIdx.x / kWarpSize) * Shape::kPages);
  }

  const DecodeArgs& a;
  const Place& p;
  Shared& shared;
  int warp, lane, g, t;
  // The thread block goes over its partition in rounds of kTurnTokens. The state of the current
  // round:
  int base;  // position of the warp's first token
  bool whole;
  int32_t blocks[Shape::kPages];
  bool empty;  // the warp sees no token in any round
  const std::byte* k_plane;
  const std::byte* v_plane;

  __device__ __forceinline__ WarpPart(const DecodeArgs& args, const Place& place, Shared& s)
      : a(args), p(place), shared(s), k_plane(args.kv.k()), v_plane(args.kv.v()) {
    // Computed from bits: division of signed numbers takes more instructions.
    lane = static_cast<int>(threadIdx.x % kWarpSize);
    warp = static_cast<int>(threadIdx.x / kWarpSize);
    g = lane >> 2;
    t = lane & 3;
    base = p.first + warp * Shape::kWarpTokens;
#pragma unroll
    for (int n = 0; n < Shape::kPages; ++n) blocks[n] = sees_page(base, n) ? p.blocks[n] : 0;
    while (base + Shape::kWarpTokens <= p.begin && base < p.last) {
      base += Shape::kTurnTokens;
      find_blocks(base, blocks);
    }
    empty = base >= p.last;
    whole = is_whole();
  }
  __device__ __forceinline__ bool is_whole() const {
    return base >= p.begin && base + Shape::kWarpTokens <= p.last;
  }
  __device__ __forceinline__ bool sees_page(int from, int n) const {
    const int first = from + n * kKvBlockTokens;
    return first < p.last && first + kKvBlockTokens > p.begin;
  }
  // Looks up the KV blocks of a round's pages; a page without visible tokens gets block 0.
  __device__ __forceinline__ void find_blocks(int from, int32_t (&to)[Shape::kPages]) const {
    const int32_t* table = a.row_of(a.batch.block_table, p.sequence) + (from >> 4);
    static_assert(kKvBlockTokens == 1 << 4);
#pragma unroll
    for (int n = 0; n < Shape::kPages; ++n) to[n] = sees_page(from, n) ? table[n] : 0;
  }

  __device__ __forceinline__ bool sees(int tile, int e) const {
    const int position = base + tile / 4 * 32 + 8 * t + Shape::pair_token(tile % 4, e);
    return position >= p.begin && position < p.last;
  }

  __device__ __forceinline__ std::byte* key_page(int i) const {
    return shared.pages[warp] + i * Shape::kPageBytes;
  }
  __device__ __forceinline__ std::byte* value_page(int i) const {
    return key_page(Shape::kLoadsBoth ? Shape::kPages + i : i);
  }

  int32_t blocks_ahead[Shape::kPages];  // of the next round
  __device__ __forceinline__ void take_blocks_ahead() {
#pragma unroll
    for (int n = 0; n < Shape::kPages; ++n) blocks[n] = blocks_ahead[n];
  }

  // Issues the copies of all pages of keys, or of values.
  template <bool kKeys>
  __device__ __forceinline__ void copy_pages() const {
    constexpr int kPieces = static_cast<int>(Shape::kLayout.bytes) / 16;
    const std::byte* from =
        (kKeys ? k_plane : v_plane) + static_cast<int64_t>(p.kv_head) * a.page_bytes + lane * 16;
    const auto to =
        static_cast<uint32_t>(__cvta_generic_to_shared(kKeys ? key_page(0) : value_page(0)));
    // 32 chunks make whole rows, so places 32 chunks further are the same distance further
    // (DecodeShape).
    const uint32_t first_to = to + (kKeys ? Shape::key_place(lane) : lane) * 16;
    const uint32_t other_to =
        to + (kKeys ? Shape::key_place(kWarpSize + lane) : kWarpSize + lane) * 16;
#pragma unroll
    for (int n = 0; n < Shape::kPages; ++n) {
      const std::byte* page =
          from + uint64_t{static_cast<uint32_t>(blocks[n])} * static_cast<uint32_t>(a.block_bytes);
#pragma unroll
      for (int c = 0; c < (kPieces + kWarpSize - 1) / kWarpSize; ++c) {
        const uint32_t at =
            c == 0 ? first_to : other_to + static_cast<uint32_t>((c - 1) * kWarpSize * 16);
        copy_async16_if((c + 1) * kWarpSize <= kPieces || lane < kPieces - c * kWarpSize,
                        at + static_cast<uint32_t>(n * Shape::kPageBytes),
                        page + c * kWarpSize * 16);
      }
    }
  }
  // Issues all copies that there is room for.
  __device__ __forceinline__ void start() const {
    if (empty) return;
    copy_pages<true>();
    commit_copies();
    if constexpr (Shape::kLoadsBoth) {
      copy_pages<false>();
      commit_copies();
    }
  }

  __device__ __forceinline__ Bytes16 shared16(const void* at) const {
    const uint4 x = *static_cast<const uint4*>(at);
    return {{x.x, x.y, x.z, x.w}};
  }

  // The scores of query g with columns 2 t and 2 t + 1.
  float score[kTiles][2];

  __device__ __forceinline__ void score_bytes(int step) {
    const __half* query = shared.queries[g];
    const std::byte* rows = key_page(2 * step + (g >> 2)) + Shape::kCodesAt;
    const std::byte* scales_at = key_page(2 * step + (t >> 1)) + (t & 1) * 16;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      const Bytes16 scales = shared16(scales_at + c * 2 * kKvBlockTokens);
      uint4 q[2];
      // After the row's end queries are zero, so any key will do.
      constexpr int kChunks = Shape::kRowBytes / 16;
      const int chunk = kChunks % 4 == 0 ? t + 4 * c : min(t + 4 * c, kChunks - 1);
      const int place = Shape::kSwapsHalves ? chunk ^ (g & 1) * 4 : chunk;
#pragma unroll
      for (int w = 0; w < 2; ++w)
        q[w] = *reinterpret_cast<const uint4*>(query + (t + 4 * c) * 16 + 8 * w);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = (g >> 1 & 1) * 8 + 2 * i + (g & 1);
        const Bytes16 k = shared16(rows + row * Shape::kRowBytes + place * 16);
        // Four words of a query form A as they lie: rows 0 to 7 have words 0 and 2, rows 8 to 15
        // words 1 and 3. Each half of the rows is right in one product and unused in the other.
        float x[4] = {0, 0, 0, 0}, y[4] = {0, 0, 0, 0};
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const uint32_t first = k.r[2 * w] ^ kSigns, second = k.r[2 * w + 1] ^ kSigns;
          mma_f16(x, q[w].x, q[w].y, q[w].z, q[w].w, bits_of(signed_bytes_to_half2(first, 0x4140U)),
                  bits_of(signed_bytes_to_half2(second, 0x4140U)));
          mma_f16(y, q[w].x, q[w].y, q[w].z, q[w].w, bits_of(signed_bytes_to_half2(first, 0x4342U)),
                  bits_of(signed_bytes_to_half2(second, 0x4342U)));
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& sum = score[4 * step + i][e];
          const float key = x[e] + y[2 + e], scale = half_of(scales, 2 * i + e);
          sum = c == 0 ? key * scale : fmaf(key, scale, sum);
        }
      }
    }
  }

  __device__ __forceinline__ void score_nibbles(int step) {
    const std::byte* scales_at = key_page(2 * step + (t >> 1)) + (t & 1) * 16;
    // Minima times sums of queries are a matrix product as well: lane t has group t, twice, for the
    // sum's two halves.
    const auto* minima = reinterpret_cast<const uint16_t*>(
        key_page(2 * step + (g >> 2)) + Shape::kMinsAt +
        2 * (min(t, kGroups - 1) * kKvBlockTokens + (g >> 1 & 1) * 8 + (g & 1) * 2));
    const uint32_t query_sum = shared.query_sums[lane];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float x[4] = {0, 0, 0, 0};
      const uint32_t least = minima[Shape::pair_token(i, 0)];
      mma_f16(x, query_sum, 0, 0, 0, __byte_perm(least, 0, 0x1010U), 0);
      score[4 * step + i][0] = x[0];
      score[4 * step + i][1] = x[1];
    }
#pragma unroll
    for (int set = 0; set < Shape::kSets; ++set) {
      constexpr int kPieceBytes = 4 * Shape::kPieceWords;
      const int place = Shape::kSwapsHalves ? set ^ (g & 1) : set;
      const std::byte* keys = key_page(2 * step + (g >> 2)) + Shape::kCodesAt +
                              ((g >> 1 & 1) * 8 + (g & 1)) * Shape::kRowBytes +
                              (4 * place + t) * kPieceBytes;
      uint32_t k[4][Shape::kPieceWords];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::byte* at = keys + 2 * i * Shape::kRowBytes;
        if constexpr (Shape::kPieceWords == 4) {
          const Bytes16 x = shared16(at);
#pragma unroll
          for (int w = 0; w < 4; ++w) k[i][w] = x.r[w];
        } else {
          const uint2 x = *reinterpret_cast<const uint2*>(at);
          k[i][0] = x.x;
          k[i][1] = x.y;
        }
      }
      const int first_group = set * Shape::kSetGroups;
      float offsets[4] = {};
#pragma unroll
      for (int c = 0; c < Shape::kSetGroups; ++c)
        offsets[2 * c] = offsets[2 * c + 1] = shared.query_offsets[first_group + c][g];
      float x[4][4];
#pragma unroll
      for (int product = 0; product < Shape::kSetProducts; ++product) {
        const Bytes16 q = shared16(&shared.operands[set * Shape::kSetProducts + product][lane]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t word = k[i][product / 2] >> (product % 2 * 8);
          const uint32_t low = biased_low_nibbles(word), high = biased_high_nibbles(word);
          if (product == 0) {
            mma_f16_onto(x[i], offsets, q.r[0], q.r[1], q.r[2], q.r[3], low, high);
          } else {
            mma_f16(x[i], q.r[0], q.r[1], q.r[2], q.r[3], low, high);
          }
        }
      }
#pragma unroll
      for (int c = 0; c < Shape::kSetGroups; ++c) {
        const Bytes16 scales = shared16(scales_at + (first_group + c) * 2 * kKvBlockTokens);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& y = score[4 * step + i][e];
            y = fmaf(x[i][2 * c + e], half_of(scales, Shape::pair_token(i, e)), y);
          }
        }
      }
    }
  }

  float out[Shape::kDimTiles][4];
  // For queries 2 t and 2 t + 1. [0] and [1] (int4): in lanes of g = group, exponentials times
  // scales; in lanes of g = kGroups + group, exponentials times minima. [2] and [3]: exponentials.
  float sums[4];
  uint32_t exponents[kTiles];  // of query g, columns 2 t and 2 t + 1
  // Sums of the factors that codes are multiplied with, for two groups each.
  static constexpr int kPairs = (kGroups + 1) / 2;
  float biases[kPairs][4];
  float scale;      // the factor for these sums and the accumulators
  float reference;  // exponentials of query g are relative to it

  // Puts eight halves of neighbouring tokens into the order of score tiles.
  __device__ __forceinline__ Bytes16 in_tile_order(const Bytes16& x) const {
    if constexpr (!kNibbles) return x;
    return {{__byte_perm(x.r[0], x.r[1], 0x5410U), __byte_perm(x.r[0], x.r[1], 0x7632U),
             __byte_perm(x.r[2], x.r[3], 0x5410U), __byte_perm(x.r[2], x.r[3], 0x7632U)}};
  }
  // Zeroes the tokens that are not seen: their place in a page may hold anything, NaN too.
  __device__ __forceinline__ void clear_unseen(int step, Bytes16& x) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int tile = 4 * step + i;
      x.r[i] &= (sees(tile, 0) ? 0x0000ffffU : 0) | (sees(tile, 1) ? 0xffff0000U : 0);
    }
  }

  // Multiplies what queries 2 t and 2 t + 1 have so far, except for sums of exponentials.
  __device__ __forceinline__ void multiply(float first, float second) {
#pragma unroll
    for (int m = 0; m < Shape::kDimTiles; ++m) {
      out[m][0] *= first;
      out[m][1] *= second;
      out[m][2] *= first;
      out[m][3] *= second;
    }
#pragma unroll
    for (int c = 0; c < kPairs; ++c) {
      biases[c][0] *= first;
      biases[c][1] *= second;
      biases[c][2] *= first;
      biases[c][3] *= second;
    }
  }

  __device__ __forceinline__ void add_values() {
    constexpr uint32_t kOnes = 0x3c003c00U;
    // Exponentials times scales are rounded to halves. If the largest scale is not in 2^-9 to 1, a
    // power of two brings it to 1/2 to 1: 2^15 times that is still a half, and 2^-1 times 2^-9 is
    // well above the smallest one.
    Bytes16 scales[kSteps][kGroups];
    __half2 largest = as_half2(0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::byte* at = value_page(2 * step + (t >> 1)) + (t & 1) * 16;
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        scales[step][c] = in_tile_order(shared16(at + c * 2 * kKvBlockTokens));
        if (!whole) clear_unseen(step, scales[step][c]);
#pragma unroll
        for (int i = 0; i < 4; ++i) largest = __hmax2(largest, as_half2(scales[step][c].r[i]));
      }
      // The rows of A are scales and minima of all groups; the lower eight rows are ones.
      Bytes16 rows = {};
      if constexpr (kNibbles) {
        static_assert(Shape::kMinsAt == kGroups * 2 * kKvBlockTokens && 2 * kGroups <= 8);
        rows = in_tile_order(shared16(at + min(g, 2 * kGroups - 1) * 2 * kKvBlockTokens));
        if (!whole) clear_unseen(step, rows);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)
        mma_f16(sums, rows.r[2 * j], kOnes, rows.r[2 * j + 1], kOnes, exponents[4 * step + 2 * j],
                exponents[4 * step + 2 * j + 1]);
    }
    const unsigned exponent =
        __reduce_max_sync(kAllLanes, max(bits_of(largest) & 0xffffU, bits_of(largest) >> 16)) >> 10;
    float turn_scale = 1;
    if (exponent < 6 || exponent > 14) {
      const uint32_t factor = exponent < 29 ? (29 - exponent) << 10 : 0x0200U >> (exponent - 29);
      turn_scale = __uint_as_float((exponent + 127 - 14) << 23);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int c = 0; c < kGroups; ++c) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            uint32_t& x = scales[step][c].r[i];
            x = bits_of(__hmul2(as_half2(x), as_half2(factor | factor << 16)));
          }
        }
      }
    }
    if (turn_scale != scale) {
      const float change = scale / turn_scale;  // powers of two
      multiply(change, change);
      scale = turn_scale;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t& x = scales[step][c].r[i];
          x = bits_of(__hmul2(as_half2(x), as_half2(exponents[4 * step + i])));
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const Bytes16& weights = scales[step][c];
#pragma unroll
        for (int j = 0; j < 2; ++j)
          mma_f16(biases[c / 2], c % 2 == 0 ? kOnes : 0, c % 2 == 0 ? 0 : kOnes,
                  c % 2 == 0 ? kOnes : 0, c % 2 == 0 ? 0 : kOnes, weights.r[2 * j],
                  weights.r[2 * j + 1]);
      }
    }
    constexpr int kLoads = Shape::kRowBytes / 16;  // 16 rows of bytes each
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const int c = kNibbles ? n / 2 : n / 4;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const Bytes16 codes = shared16(value_page(2 * step + (t >> 1)) + Shape::kCodesAt +
                                       (t & 1) * 16 + g * 32 + n * 256);
        const Bytes16& weights = scales[step][c];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t b0 = weights.r[2 * j], b1 = weights.r[2 * j + 1];
          if constexpr (kNibbles) {
            const uint32_t lower = codes.r[j], upper = codes.r[2 + j];
            const uint32_t lower1 = lower >> 8, upper1 = upper >> 8;
            mma_f16(out[2 * n], biased_low_nibbles(lower), biased_low_nibbles(upper),
                    biased_low_nibbles(lower1), biased_low_nibbles(upper1), b0, b1);
            mma_f16(out[2 * n + 1], biased_high_nibbles(lower), biased_high_nibbles(upper),
                    biased_high_nibbles(lower1), biased_high_nibbles(upper1), b0, b1);
          } else {
            const uint32_t lower = codes.r[j] ^ kSigns, upper = codes.r[2 + j] ^ kSigns;
            mma_f16(out[n], biased_bytes(lower, 0), biased_bytes(upper, 0), biased_bytes(lower, 1),
                    biased_bytes(upper, 1), b0, b1);
          }
        }
      }
    }
  }

  // Turns scores into exponentials, and makes the sums of earlier rounds relative to the same
  // reference. Returns whether this round's reference is not the unified maximum.
  __device__ __forceinline__ bool exponentiate(bool first_turn) {
    if (!whole) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (!sees(i, e)) score[i][e] = -INFINITY;
        }
      }
    }
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) largest = fmaxf(largest, fmaxf(score[i][0], score[i][1]));
    largest *= a.scale_log2;
    float turn_reference;
    const bool own = choose_reference<kUnified>(a, p, largest, turn_reference);
    if (first_turn) {
      reference = turn_reference;
    } else if (__any_sync(kAllLanes, g < p.queries && turn_reference > reference)) {
      const float before = reference;
      reference = fmaxf(reference, turn_reference);
      const float change = before == reference ? 1 : exp2_fast(before - reference);
      const float first = __shfl_sync(kAllLanes, change, 8 * t);
      const float second = __shfl_sync(kAllLanes, change, 8 * t + 4);
      multiply(first, second);
      sums[0] *= first;
      sums[1] *= second;
      sums[2] *= first;
      sums[3] *= second;
    }
    const float offset = reference == -INFINITY ? 0 : reference;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      exponents[i] = pack_half2(exp2_fast(fmaf(score[i][0], a.scale_log2, -offset)),
                                exp2_fast(fmaf(score[i][1], a.scale_log2, -offset)));
    return own;
  }

  // Called with copies in flight and queries in shared memory. Stores sums of exponentials and
  // weighted values in shared memory. Returns whether they are relative to a maximum of the warp's
  // own.
  __device__ __forceinline__ bool finish() {
    if (empty) {
      if (t == 0) shared.references[warp][g] = -INFINITY;
      if (lane < kTileQueries) shared.sums[warp][lane] = 0;
      for (int query = 0; query < p.queries; ++query) {
        for (int d = lane; d < kDim; d += kWarpSize) shared.out(warp, query)[d] = 0;
      }
      return false;
    }
#pragma unroll
    for (int m = 0; m < Shape::kDimTiles; ++m) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[m][j] = 0;
    }
#pragma unroll
    for (int c = 0; c < kPairs; ++c) {
#pragma unroll
      for (int j = 0; j < 4; ++j) biases[c][j] = 0;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] = 0;
    scale = 1;
    bool own = false, first_turn = true;
#pragma unroll 1
    while (true) {
      const bool more = base + Shape::kTurnTokens < p.last;
      if (more) find_blocks(base + Shape::kTurnTokens, blocks_ahead);
      // The keys of this round have arrived; its values and then the next round's keys are in
      // flight.
      wait_copies<Shape::kLoadsBoth ? 1 : 0>();
      __syncwarp();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if constexpr (kNibbles) {
          score_nibbles(step);
        } else {
          score_bytes(step);
        }
      }
      __syncwarp();
      if constexpr (Shape::kLoadsBoth) {
        if (more) take_blocks_ahead(), copy_pages<true>();
        commit_copies();
      } else {
        copy_pages<false>();
        commit_copies();
      }
      own |= exponentiate(first_turn);
      wait_copies<Shape::kLoadsBoth ? 1 : 0>();
      __syncwarp();
      add_values();
      if (!more) break;
      __syncwarp();
      if constexpr (Shape::kLoadsBoth) {
        copy_pages<false>();
      } else {
        take_blocks_ahead();
        copy_pages<true>();
      }
      commit_copies();
      base += Shape::kTurnTokens;
      whole = is_whole();
      first_turn = false;
    }
    __syncwarp();  // outputs reuse the memory of the pages
    if (t == 0) shared.references[warp][g] = reference;
    if (g == 0) {
      shared.sums[warp][2 * t] = sums[2];
      shared.sums[warp][2 * t + 1] = sums[3];
    }
    float added[kGroups][2] = {};
    if constexpr (kNibbles) {
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          added[c][e] = fmaf(__shfl_sync(kAllLanes, sums[e], 4 * c + t), Shape::kMiddle,
                             __shfl_sync(kAllLanes, sums[e], 4 * (kGroups + c) + t));
      }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int query = 2 * t + e;
      if (query >= p.queries) continue;
      float* to = shared.out(warp, query);
#pragma unroll
      for (int m = 0; m < Shape::kDimTiles; ++m) {
        const int d = Shape::dim_of(m, 0, g), c = m / 4;
        const float bias = (m % 2 == 1 ? Shape::kHighBias : Shape::kBias) + Shape::kMiddle;
        const float more = fmaf(biases[c / 2][c % 2 * 2 + e] * scale, -bias, added[c][e]);
        *reinterpret_cast<float2*>(to + d) =
            make_float2(fmaf(out[m][e], scale, more), fmaf(out[m][2 + e], scale, more));
      }
    }
    return own;
  }
};

}  // namespace spillway::cuda
