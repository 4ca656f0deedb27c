// SPDX-License-Identifier: Apache-2.0
// The persistent step's linear layers with packed quantized weights (persistent_step.h), with the
// products of linear_quant_few.cuh: all warps share a group of 16 rows, each multiplies an eighth
// of its blocks, and their sums are added up in shared memory.
#pragma once

#include "cuda/linear/linear_quant_few.cuh"
#include "cuda/persistent/persistent_step_input.cuh"
#include "cuda/persistent/persistent_step_row.cuh"

namespace spillway::cuda {

// The sums of a round's sets, double-buffered: those of one round are read while the next are
// written.
inline constexpr int kRoundSets = 4;
struct GroupSums {
  float of[2][kRoundSets][2][kStepWarps][kGroupRowCount];
};

// The layout of a phase's input in shared memory: x in the form that products read, separately for
// each warp's blocks; the sums of x that correct the products; and, if a norm is applied, the plain
// normalized x.
template <class Block>
struct GroupInput {
  static constexpr int kXSums = QuantShape<Block>::kXSums;
  int warp_tiles;  // of one warp, at most
  int sums_at, normed_at, bytes;

  __host__ __device__ explicit GroupInput(int k) {
    const int blocks = k / Block::kElements;
    warp_tiles = (blocks + kStepWarps - 1) / kStepWarps * TileFormat<Block>::kTiles;
    const int tiles = kStepWarps * warp_tiles + kPairTiles;
    sums_at = tiles * 64;
    normed_at = sums_at + tiles * 2 * kXSums * 4;
    // Longer rows have no norm applied (kStepNormColumns).
    bytes = (normed_at + (k <= kStepNormColumns ? 2 * k : 0) + 127) / 128 * 128;
  }
  __device__ __forceinline__ uint4* x(uint8_t* input, int warp) const {
    return reinterpret_cast<uint4*>(input) + warp * warp_tiles * 4;
  }
  __device__ __forceinline__ float* sums(uint8_t* input, int warp) const {
    return reinterpret_cast<float*>(input + sums_at) + warp * warp_tiles * 2 * kXSums;
  }
};

#if __CUDA_ARCH__ >= 900

// Packed weights of one type in a persistent step.
template <class Block>
struct PackedWeights {
  using Value = __half;
  using Sums = GroupSums;
  template <int D>
  using Pieces = GroupPieces<Block, D>;
  using Sizes = GroupSizes<Block>;
  using Format = TileFormat<Block>;

  __device__ __forceinline__ static void take_input(const StepPhase& phase, const GridSeat& seat,
                                                    uint8_t* input, float* partial) {
    const GroupInput<Block> at(phase.k);
    const WarpBlocks<Block::kElements> blocks(phase.k, seat.warp);
    const int lane = threadIdx.x % 32, first = blocks.first * Format::kTiles,
              tiles = blocks.count * Format::kTiles;
    uint4* const x = at.x(input, seat.warp);
    float* const sums = at.sums(input, seat.warp);
    if (phase.norm_weight == nullptr) {
      stage_few_x<Block, 1>({reinterpret_cast<const __half*>(phase.x), 0, 1}, first, tiles, x, sums,
                            lane);
    } else {
      __half* const normed = reinterpret_cast<__half*>(input + at.normed_at);
      take_normed(phase, normed, partial);
      sync_compute_warps();
      stage_few_x<Block, 1, true>({normed, 0, 1}, first, tiles, x, sums, lane);
    }
    __syncwarp();
  }

  template <int D, class Ring>
  __device__ __forceinline__ static void multiply(const StepPhases& step, const StepPhase& phase,
                                                  const StepToken& token, const GridSeat& seat,
                                                  Ring& ring, uint8_t* input, Sums& sums) {
    const int thread = threadIdx.x, lane = thread % 32;
    const BlockPairs sets(phase, seat);
    const int items = set_groups(phase.kind);
    const int blocks = WarpBlocks<Block::kElements>(phase.k, seat.warp).count;
    const GroupInput<Block> at(phase.k);
    FewSums<Block, 1> few(at.x(input, seat.warp), at.sums(input, seat.warp), lane);
    const bool interleaved = step.appends.interleaved;
    // Threads 0 to 15 have the rows of a set's first group, 16 to 31 those of its second.
    const int item = lane / kGroupRowCount, row = lane % kGroupRowCount;
    const bool neighbours = phase.kind == PhaseKind::kAppend && interleaved;
    for (int round = 0; round * kRoundSets < sets.count; ++round) {
      const int first = round * kRoundSets, last = min(sets.count, first + kRoundSets);
      auto& of = sums.of[round % 2];
      RowEnd end;
      if (seat.warp < kRoundSets) {
        const int mine = first + seat.warp;
        const RowGroup group = group_of<D>(phase, interleaved, sets[mine], item);
        end.begin(phase, phase.kind == PhaseKind::kGated ? 0 : group.part, group.row + row,
                  neighbours ? row % 2 : item, mine < last && item < items);
      }
      for (int i = first; i < last; ++i) {
        for (int j = 0; j < items; ++j) {
          few.clear();
          for (int block = 0; block < blocks; block += Sizes::kStageBlocks) {
            add_stage(few, ring.wait(), block, blocks - block);
            ring.release();
          }
          few.store(of[i - first][j][seat.warp]);
        }
      }
      sync_compute_warps();
      if (seat.warp < kRoundSets) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kStepWarps; ++w) sum += of[seat.warp][item][w][row];
        end.finish<D>(step, phase, token, sum, neighbours ? 1 : kGroupRowCount);
      }
    }
  }

 private:
  // Adds the products of one stage: blocks from the warp's `block` on, of which `left` are left.
  __device__ __forceinline__ static void add_stage(FewSums<Block, 1>& few, const uint8_t* stage,
                                                   int block, int left) {
    using P = Sizes;
    static_assert(P::kChunkBytes == PairFormat<Block>::kChunkBytes);
#pragma unroll
    for (int c = 0; c < P::kChunks; ++c) {
      const int tiles = (left - c * P::kChunkBlocks) * Format::kTiles;
      const int first = (block + c * P::kChunkBlocks) * Format::kTiles;
      if (tiles >= kPairTiles) {
        few.template add<true>(stage + c * P::kChunkBytes, first, kPairTiles);
      } else if (tiles > 0) {
        few.template add<false>(stage + c * P::kChunkBytes, first, tiles);
      }
    }
  }
};

// Packed weights of two types in a persistent step; each phase has one of them.
template <class First, class Second, DType kSecond>
struct MixedWeights {
  using Value = __half;
  using Sums = GroupSums;
  template <int D>
  using Pieces = SizedPieces<MixedSizes<First, Second, kSecond>, D>;

  __device__ __forceinline__ static void take_input(const StepPhase& phase, const GridSeat& seat,
                                                    uint8_t* input, float* partial) {
    if (phase.weights == kSecond) {
      PackedWeights<Second>::take_input(phase, seat, input, partial);
    } else {
      PackedWeights<First>::take_input(phase, seat, input, partial);
    }
  }

  template <int D, class Ring>
  __device__ __forceinline__ static void multiply(const StepPhases& step, const StepPhase& phase,
                                                  const StepToken& token, const GridSeat& seat,
                                                  Ring& ring, uint8_t* input, Sums& sums) {
    if (phase.weights == kSecond) {
      PackedWeights<Second>::template multiply<D>(step, phase, token, seat, ring, input, sums);
    } else {
      PackedWeights<First>::template multiply<D>(step, phase, token, seat, ring, input, sums);
    }
  }
};

#endif

}  // namespace spillway::cuda
