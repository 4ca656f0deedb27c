// SPDX-License-Identifier: Apache-2.0
// Hopper's prefill kernel: what is in shared memory, and the warps that bring it there.
#pragma once

#include "cuda/attention/attention_prefill_work.cuh"
#include "cuda/tensor_map.h"

namespace spillway::cuda::prefill {

constexpr int kTokens = 128;
constexpr int kQueryStages = 2, kWorkStages = kQueryStages + 2;
constexpr int kPages = kTokens / kKvBlockTokens;
constexpr uint32_t kAlignment = 1024;
constexpr float kRescaleAt = 8;  // see attention_prefill.cu
// Exponents of the unified maximum: the range's highest score is 2^15. A row whose sum is 1 or more
// loses no more to F16's smallest numbers than one whose largest exponent is 1.
constexpr float kTopExponent = 15, kSmallestSum = 1;
// Pieces kept for later: when there are many they are done; some more may be on their way then.
constexpr int kManyFailures = 16, kMaxFailures = 32;

struct Maps {
  CUtensorMap q;     // [rows][heads * head_dim], boxes of a block's rows
  CUtensorMap k, v;  // [blocks * kv_heads * 16][head_dim], boxes of a page
  int rows;          // of k and v
};

template <int kDim, int kGroups>
struct Shape {
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kConsumers = 128 * kGroups;
  static constexpr int kThreads = kConsumers + 128;  // registers are given by whole warpgroups
  static constexpr int kConsumerRegisters = kGroups == 2 ? 240 : 160;
  static constexpr int kProducerRegisters = kGroups == 2 ? 24 : 32;
  // What all have together is what they start with: 168 or 128 each.
  static_assert(kGroups * kConsumerRegisters + kProducerRegisters ==
                (kGroups + 1) * (kGroups == 2 ? 168 : 128));
  // Matrices are in slices of 64 dims.
  static constexpr int kSlices = kDim / 64;
  static constexpr uint32_t kSliceBytes = kTokens * 128, kTileBytes = kSlices * kSliceBytes;
  static constexpr uint32_t kQuerySliceBytes = kRows * 128;
  static constexpr uint32_t kQueryBytes = kSlices * kQuerySliceBytes;
  static constexpr int kStages = kDim == 128 ? 2 : 4;
  static constexpr uint32_t kSharedBytes =
      kQueryStages * kQueryBytes + 2 * kStages * kTileBytes + kAlignment;
};

template <int kStages>
struct Shared {
  uint64_t queries_full[kQueryStages], queries_empty[kQueryStages];
  uint64_t keys_full[kStages], keys_empty[kStages], values_full[kStages], values_empty[kStages];
  PrefillWork work[kWorkStages];  // one is needed until the next one has been scored
  int failures;
  int failed[kMaxFailures];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kDim, int kGroups>
struct Memory {
  using Shape = prefill::Shape<kDim, kGroups>;
  Shared<Shape::kStages>& shared;
  uint32_t first;    // address
  std::byte* start;  // the same
  __device__ __forceinline__ uint32_t queries(int stage) const {
    return first + stage * Shape::kQueryBytes;
  }
  __device__ __forceinline__ uint32_t keys(int stage) const {
    return first + kQueryStages * Shape::kQueryBytes + 2 * stage * Shape::kTileBytes;
  }
  __device__ __forceinline__ uint32_t values(int stage) const {
    return keys(stage) + Shape::kTileBytes;
  }
};

// Row of the map at which this lane's page of the tile from `first` on begins. Pages that nobody
// sees are zeros: rows behind the last.
template <int kSlices>
__device__ __forceinline__ int page_row(const PrefillPlace& p, int kv_heads, int first, int none,
                                        int lane) {
  const int position = first + lane / kSlices * kKvBlockTokens;
  if (lane >= kPages * kSlices || position >= p.end || position + kKvBlockTokens <= p.begin)
    return none;
  return (p.table[position / kKvBlockTokens] * kv_heads + p.kv_head) * kKvBlockTokens;
}

// A tile, by a warp.
template <int kSlices>
__device__ __forceinline__ void copy_tile(const CUtensorMap& map, int row, uint32_t to,
                                          uint32_t full, int lane) {
  if (lane == 0) arrive_and_expect(full, kSlices * kTokens * 128);
  __syncwarp();
  if (lane < kPages * kSlices) {
    const int page = lane / kSlices, slice = lane % kSlices;
    copy_box(to + slice * kTokens * 128 + page * kKvBlockTokens * 128, map, slice * 64, row, full);
  }
  __syncwarp();
}

// A warp that takes pieces and brings queries and keys. It is ahead of the values: what it must
// look up for a piece is there when the piece before ends.
template <int kDim, int kGroups, bool kUnified>
struct KeyProducer {
  using Shape = prefill::Shape<kDim, kGroups>;
  const PrefillArgs& a;
  const PrefillOrder& order;
  const Maps& maps;
  const Memory<kDim, kGroups>& memory;
  // The first round waits for nobody.
  RingPlace<Shape::kStages> keys{0, 1};
  RingPlace<kQueryStages> queries{0, 1};
  RingPlace<kWorkStages> work{};

  __device__ __forceinline__ void wait_queries() const {
    wait_barrier(shared_address(&memory.shared.queries_empty[queries.stage]), queries.parity);
  }
  // Without queries.
  __device__ __forceinline__ void tell(PrefillWork::Kind kind, int lane) {
    wait_queries();
    if (lane == 0) {
      memory.shared.work[work.stage].kind = kind;
      arrive(shared_address(&memory.shared.queries_full[queries.stage]));
    }
    work.advance();
    queries.advance();
  }

  __device__ __forceinline__ void produce(const PrefillPlace& p, int piece, bool unified,
                                          int lane) {
    const int tokens = (p.end + kKvBlockTokens - 1) / kKvBlockTokens * kKvBlockTokens;
    const int tiles = (tokens - p.begin + kTokens - 1) / kTokens;
    const auto row_of = [&](int tile) {
      return page_row<Shape::kSlices>(p, a.kv_heads, tokens - (tile + 1) * kTokens, maps.rows,
                                      lane);
    };
    int row = row_of(0);
    wait_queries();
    if (lane == 0) {
      memory.shared.work[work.stage] = {
          p, unified ? PrefillWork::kUnified : PrefillWork::kOnline, piece, tokens, tiles, 0};
      const uint32_t full = shared_address(&memory.shared.queries_full[queries.stage]);
      arrive_and_expect(full, Shape::kQueryBytes);
#pragma unroll
      for (int slice = 0; slice < Shape::kSlices; ++slice) {
        copy_box(memory.queries(queries.stage) + slice * Shape::kQuerySliceBytes, maps.q,
                 p.head * kDim + slice * 64, static_cast<int>(p.first_row), full);
      }
    }
    __syncwarp();
    work.advance();
    queries.advance();
    for (int tile = 0; tile < tiles; ++tile) {
      const int next_row = row_of(tile + 1);
      wait_barrier(shared_address(&memory.shared.keys_empty[keys.stage]), keys.parity);
      copy_tile<Shape::kSlices>(maps.k, row, memory.keys(keys.stage),
                                shared_address(&memory.shared.keys_full[keys.stage]), lane);
      keys.advance();
      row = next_row;
    }
  }

  // All before is done; how many pieces have failed.
  __device__ __forceinline__ int flush(int lane) {
    const RingPlace<kQueryStages> at = queries;
    tell(PrefillWork::kFlush, lane);
    wait_barrier(shared_address(&memory.shared.queries_empty[at.stage]), at.parity ^ 1);
    return memory.shared.failures;
  }
  __device__ __forceinline__ bool many_failed(int lane) const {
    int failures = 0;
    if (lane == 0) failures = *const_cast<volatile int*>(&memory.shared.failures);
    return __shfl_sync(kAllLanes, failures, 0) >= kManyFailures;
  }

  // Every piece is tried relative to the unified maximum first, whatever this block has had before:
  // its bits do not depend on who takes it when.
  __device__ __forceinline__ void run(int lane) {
    int piece = static_cast<int>(blockIdx.x);
    int repeated = -1, failures = 0;  // of those that have failed: the next to be done again
    for (;;) {
      const bool ends = piece >= order.pieces;
      if (repeated < 0) {
        if (ends && lane == 0) order.leave();
        if (ends && !kUnified) break;
        if (kUnified && (ends || many_failed(lane))) failures = flush(lane), repeated = 0;
      }
      const bool again = kUnified && repeated >= 0;
      if (again && repeated == failures) {
        if (ends) break;
        __syncwarp();
        if (lane == 0) memory.shared.failures = 0;
        repeated = -1;
      } else {
        int next = 0;
        if (lane == 0 && !again) next = order.next(piece);
        const int current = again ? memory.shared.failed[repeated++] : piece;
        PrefillPlace p;
        if (order.find(a, Shape::kRows, current, p)) produce(p, current, kUnified && !again, lane);
        if (!again) piece = __shfl_sync(kAllLanes, next, 0);
      }
    }
    tell(PrefillWork::kStop, lane);
  }
};

// A warp that brings the values of what the other tells.
template <int kDim, int kGroups>
struct ValueProducer {
  using Shape = prefill::Shape<kDim, kGroups>;
  const PrefillArgs& a;
  const Maps& maps;
  const Memory<kDim, kGroups>& memory;

  __device__ __forceinline__ void run(int lane) {
    RingPlace<Shape::kStages> values{0, 1};
    RingPlace<kQueryStages> queries;
    RingPlace<kWorkStages> work;
    for (;; queries.advance(), work.advance()) {
      wait_barrier(shared_address(&memory.shared.queries_full[queries.stage]), queries.parity);
      const PrefillWork& w = memory.shared.work[work.stage];
      const PrefillWork::Kind kind = w.kind;
      if (kind == PrefillWork::kStop) break;
      const PrefillPlace p = w;
      const int tokens = w.tokens, tiles = kind == PrefillWork::kFlush ? 0 : w.tiles;
      __syncwarp();
      if (lane == 0) arrive(shared_address(&memory.shared.queries_empty[queries.stage]));
      const auto row_of = [&](int tile) {
        return page_row<Shape::kSlices>(p, a.kv_heads, tokens - (tile + 1) * kTokens, maps.rows,
                                        lane);
      };
      int row = tiles > 0 ? row_of(0) : 0;
      for (int tile = 0; tile < tiles; ++tile) {
        const int next_row = row_of(tile + 1);
        wait_barrier(shared_address(&memory.shared.values_empty[values.stage]), values.parity);
        copy_tile<Shape::kSlices>(maps.v, row, memory.values(values.stage),
                                  shared_address(&memory.shared.values_full[values.stage]), lane);
        values.advance();
        row = next_row;
      }
    }
  }
};

#endif

}  // namespace spillway::cuda::prefill
