// SPDX-License-Identifier: Apache-2.0
// The persistent step's linear layers with F16 and BF16 weights (persistent_step.h). Each warp
// computes sums over its columns; the sums of a row are added up in shared memory in the order of
// columns, and the phase's epilogue is applied.
#pragma once

#include "cuda/persistent/persistent_step_input.cuh"
#include "cuda/persistent/persistent_step_row.cuh"

namespace spillway::cuda {

// The sums of a round's pairs, double-buffered: those of one round are read while the next are
// written.
inline constexpr int kRoundPairs = 64;
struct PairSums {
  float of[2][kRoundPairs][2][kColumnWarps];
};

#if __CUDA_ARCH__ >= 900

// Multiplies eight columns of two rows with x. Each row has two sums, so that not every product
// waits for the one before it.
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

// Multiplies a piece of two rows with x.
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

// Returns the sums over the warp of two values: lanes 0 to 15 get that of a, the others that of b.
__device__ __forceinline__ float sum_of_two(float a, float b) {
  const bool low = threadIdx.x % 32 < 16;
  float mine = low ? a : b;
  mine += __shfl_xor_sync(~0U, low ? b : a, 16);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) mine += __shfl_xor_sync(~0U, mine, offset);
  return mine;
}

template <class T, int D>
__device__ __forceinline__ void linear_phase(const StepPhases& step, const StepPhase& phase,
                                             const StepToken& token, const GridSeat& seat,
                                             StepRing<PairPieces<D>>& ring, const T* x,
                                             PairSums& sums) {
  const int thread = threadIdx.x, lane = thread % 32;
  const BlockPairs pairs(phase, seat);
  const WarpColumns columns(phase.k, seat.warp);
  x += columns.first;
  // If a warp's columns are exactly one piece, it keeps its part of x in registers.
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
    if (thread < 2 * kRoundPairs) {
      const RowPair pair = pair_of<D>(phase, step.appends.interleaved, pairs[mine]);
      const int r = thread % 2;
      end.begin(phase, pair.part, r == 0 ? pair.row[0] : pair.row[1], r, mine < last);
    }
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
    sync_compute_warps();
    if (thread < 2 * kRoundPairs) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kColumnWarps; ++w) sum += of[thread / 2][thread % 2][w];
      end.finish<D>(step, phase, token, sum, /*partner=*/1);
    }
  }
}

// F16 or BF16 weights of a persistent step.
template <class T>
struct PlainWeights {
  using Value = T;
  using Sums = PairSums;
  template <int D>
  using Pieces = PairPieces<D>;

  __device__ __forceinline__ static void take_input(const StepPhase& phase,
                                                    const GridSeat& /*seat*/, uint8_t* input,
                                                    float* partial) {
    T* const x = reinterpret_cast<T*>(input);
    if (phase.norm_weight == nullptr) {
      for (int i = threadIdx.x; i < phase.k / 8; i += kStepThreads) {
        reinterpret_cast<uint4*>(x)[i] = __ldcg(reinterpret_cast<const uint4*>(phase.x) + i);
      }
    } else {
      take_normed(phase, x, partial);
    }
    sync_compute_warps();
  }

  template <int D>
  __device__ __forceinline__ static void multiply(const StepPhases& step, const StepPhase& phase,
                                                  const StepToken& token, const GridSeat& seat,
                                                  StepRing<PairPieces<D>>& ring,
                                                  const uint8_t* input, Sums& sums) {
    linear_phase(step, phase, token, seat, ring, reinterpret_cast<const T*>(input), sums);
  }
};

#endif

}  // namespace spillway::cuda
