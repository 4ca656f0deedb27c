// SPDX-License-Identifier: Apache-2.0
// Linear layers of the walk's token (token_walk.h): each warp has sums over its columns; those of a
// row meet in shared memory, are added up in the order of columns, and become what the phase says.
#pragma once

#include "cuda/linear_params.cuh"
#include "cuda/qkv_append.cuh"
#include "cuda/token_walk_ring.cuh"

namespace spillway::cuda {

// Sums of a round's pairs, of two rounds in turn: one is read while the next is written.
inline constexpr int kRoundPairs = 64;
struct PairSums {
  float of[2][kRoundPairs][2][kColumnWarps];
};

#if __CUDA_ARCH__ >= 900

// Eight columns of two rows with x. Two sums per row: not every product waits for the one before
// it.
template <class T>
__device__ __forceinline__ void add_eight(const uint8_t* piece, int column, const float (&x)[8],
                                          float (&sum)[2][2]) {
  float a[8], b[8];
  Vector16<T>::unpack(*reinterpret_cast<const uint4*>(piece + 2 * column), a);
  Vector16<T>::unpack(*reinterpret_cast<const uint4*>(piece + kPieceRowBytes + 2 * column), b);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    sum[0][e % 2] = fmaf(a[e], x[e], sum[0][e % 2]);
    sum[1][e % 2] = fmaf(b[e], x[e], sum[1][e % 2]);
  }
}

// A piece of two rows with x.
template <class T>
__device__ __forceinline__ void add_products(const uint8_t* piece, const T* x, int columns,
                                             float (&sum)[2][2]) {
  const auto eight = [&](int column) {
    float v[8];
    Vector16<T>::unpack(*reinterpret_cast<const uint4*>(x + column), v);
    add_eight<T>(piece, column, v, sum);
  };
  const int first = threadIdx.x % 32 * 8;
  if (columns == kPieceColumns) {
#pragma unroll
    for (int i = 0; i < kPieceColumns / 256; ++i) eight(i * 256 + first);
  } else {
    for (int column = first; column < columns; column += 256) eight(column);
  }
}

// The sums over the warp of two values: lanes 0 to 15 have the first, the others the second.
__device__ __forceinline__ float sum_of_two(float a, float b) {
  const bool low = threadIdx.x % 32 < 16;
  float mine = low ? a : b;
  mine += __shfl_xor_sync(~0U, low ? b : a, 16);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) mine += __shfl_xor_sync(~0U, mine, offset);
  return mine;
}

// One row's sum, and what becomes of it: two neighbouring threads have a pair.
struct RowEnd {
  RowPair pair;
  int row = 0;
  bool valid = false;
  float before = 0, bias = 0;  // fetched while sums are made

  template <int D>
  __device__ __forceinline__ void begin(const Walk& walk, const WalkPhase& phase, int index,
                                        bool exists) {
    const int r = threadIdx.x % 2;
    pair = pair_of<D>(phase, walk.appends.interleaved, index);
    row = r == 0 ? pair.row[0] : pair.row[1];
    valid = exists && row < phase.n[pair.part];
    before = bias = 0;
    if (!valid) return;
    const int matrix = phase.kind == WalkKind::kGated ? r : pair.part;
    if (phase.bias[matrix] != nullptr) bias = __ldg(phase.bias[matrix] + row);
    if (phase.kind == WalkKind::kLinear && phase.epilogue == Epilogue::kAccumulate) {
      before = __ldcg(reinterpret_cast<const float*>(phase.out[pair.part]) + row);
    }
  }

  // All threads of the warp.
  template <int D>
  __device__ __forceinline__ void finish(const Walk& walk, const WalkPhase& phase,
                                         const WalkToken& token, float sum) const {
    float mine = sum + bias, other = __shfl_xor_sync(~0U, mine, 1);
    if (!valid) return;
    const int r = threadIdx.x % 2, part = pair.part;
    if (phase.kind == WalkKind::kGated) {
      if (r == 0) {
        store_as(phase.out_type, phase.out[0], row, activated(phase.activation, mine) * other);
      }
      return;
    }
    if (phase.kind == WalkKind::kLinear) {
      if (phase.epilogue == Epilogue::kAccumulate) {
        reinterpret_cast<float*>(phase.out[part])[row] = before + mine;
      } else {
        if (phase.epilogue == Epilogue::kActivate) mine = activated(phase.activation, mine);
        store_as(phase.out_type, phase.out[part], row, mine);
      }
      return;
    }
    // As linears() and rope_and_append() would: rounded in between.
    mine = rounded_as(phase.out_type, mine);
    other = rounded_as(phase.out_type, other);
    if (part < 2 && walk.appends.angles != nullptr) {
      const int index = walk.appends.interleaved ? row % D / 2 : row % (D / 2);
      const float2 angle = __ldg(reinterpret_cast<const float2*>(walk.appends.angles) + index);
      mine = QkvAppend::rotated(part, r, angle, mine, other);
    }
    if (part == 0) return store_as(phase.out_type, phase.out[0], row, mine);
    std::byte* const page = phase.out[part] + token.block * walk.sequence.block_bytes +
                            static_cast<int64_t>(row / D) * (kKvBlockTokens * D * 2);
    reinterpret_cast<__half*>(page)[token.position % kKvBlockTokens * D + row % D] =
        __float2half_rn(mine);
  }
};

template <class T, int D>
__device__ __forceinline__ void linear_phase(const Walk& walk, const WalkPhase& phase,
                                             const WalkToken& token, const WalkSeat& seat,
                                             WalkRing<D>& ring, const T* x, PairSums& sums) {
  const int thread = threadIdx.x, lane = thread % 32;
  const BlockPairs pairs(phase, seat);
  const WarpColumns columns(phase.k, seat.warp);
  x += columns.first;
  // Where a warp's columns are one whole piece, it holds its part of x.
  const bool holds_x = columns.count == kPieceColumns;
  float held[kPieceColumns / 256][8];
  if (holds_x) {
#pragma unroll
    for (int i = 0; i < kPieceColumns / 256; ++i) {
      Vector16<T>::unpack(*reinterpret_cast<const uint4*>(x + i * 256 + lane * 8), held[i]);
    }
  }
  for (int round = 0; round * kRoundPairs < pairs.count; ++round) {
    const int first = round * kRoundPairs, last = min(pairs.count, first + kRoundPairs);
    auto& of = sums.of[round % 2];
    RowEnd end;
    const int mine = first + thread / 2;
    if (thread < 2 * kRoundPairs) end.begin<D>(walk, phase, pairs[mine], mine < last);
    for (int i = first + first_pair(seat.warp); i < last; i += kRowWarps) {
      float sum[2][2] = {};
      for (int column = 0; column < columns.count; column += kPieceColumns) {
        const uint8_t* const piece = ring.wait();
        if (holds_x) {
#pragma unroll
          for (int j = 0; j < kPieceColumns / 256; ++j) {
            add_eight<T>(piece, j * 256 + lane * 8, held[j], sum);
          }
        } else {
          add_products(piece, x + column, min(kPieceColumns, columns.count - column), sum);
        }
        ring.release();
      }
      const float total = sum_of_two(sum[0][0] + sum[0][1], sum[1][0] + sum[1][1]);
      if (lane % 16 == 0) of[i - first][lane / 16][seat.warp % kColumnWarps] = total;
    }
    __syncthreads();
    if (thread < 2 * kRoundPairs) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kColumnWarps; ++w) sum += of[thread / 2][thread % 2][w];
      end.finish<D>(walk, phase, token, sum);
    }
  }
}

#endif

}  // namespace spillway::cuda
