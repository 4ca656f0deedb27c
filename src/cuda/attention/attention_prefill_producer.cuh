// SPDX-License-Identifier: Apache-2.0
// Hopper's prefill kernel: the layout of its shared memory, and the warps that load data into it.
#pragma once

#include "cuda/attention/attention_prefill_work.cuh"
#include "cuda/tensor_map.h"

namespace spillway::cuda::prefill {

constexpr int kTokens = 128;
constexpr int kQueryStages = 2, kWorkStages = kQueryStages + 2;
constexpr int kPages = kTokens / kKvBlockTokens;
constexpr uint32_t kAlignment = 1024;
constexpr float kRescaleAt = 8;  // see attention_prefill.cu
// Exponentials relative to the unified maximum: the range's highest score gives 2^15. A row whose
// sum is 1 or more loses no more to F16's smallest numbers than a row whose largest exponential is
// 1.
constexpr float kTopExponent = 15, kSmallestSum = 1;
// Failed work items are kept. When there are kManyFailures they are repeated; some more may be in
// flight by then.
constexpr int kManyFailures = 16, kMaxFailures = 32;

struct Maps {
  CUtensorMap q;     // [rows][heads * head_dim], boxes of a thread block's rows
  CUtensorMap k, v;  // [blocks * kv_heads * 16][head_dim], boxes of a page
  int rows;          // of k and v
};

template <int kDim, int kGroups>
struct Shape {
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kConsumers = 128 * kGroups;
  static constexpr int kThreads = kConsumers + 128;  // registers are assigned to whole warpgroups
  static constexpr int kConsumerRegisters = kGroups == 2 ? 240 : 160;
  static constexpr int kProducerRegisters = kGroups == 2 ? 24 : 32;
  // The warpgroups together have as many as they start with: 168 or 128 per thread.
  static_assert(kGroups * kConsumerRegisters + kProducerRegisters ==
                (kGroups + 1) * (kGroups == 2 ? 168 : 128));
  // Matrices are stored in slices of 64 dims.
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
  PrefillWork work[kWorkStages];  // an item is needed until the next one has been scored
  int failures;
  int failed[kMaxFailures];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kDim, int kGroups>
struct Memory {
  using Shape = prefill::Shape<kDim, kGroups>;
  Shared<Shape::kStages>& shared;
  uint32_t first;    // address in shared memory
  std::byte* start;  // the same place as a pointer
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

// Returns the map's row at which this lane's page of the tile starting at `first` begins. A page
// that no row attends to gets `none`, a row after the last, which is copied as zeros.
template <int kSlices>
__device__ __forceinline__ int page_row(const PrefillPlace& p, int kv_heads, int first, int none,
                                        int lane) {
  const int position = first + lane / kSlices * kKvBlockTokens;
  if (lane >= kPages * kSlices || position >= p.end || position + kKvBlockTokens <= p.begin)
    return none;
  return (p.table[position / kKvBlockTokens] * kv_heads + p.kv_head) * kKvBlockTokens;
}

// Copies a tile; called by a whole warp.
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

// The warp that takes work items and loads queries and keys. It runs ahead of the values, so that
// what it must look up for an item is there when the previous item ends.
template <int kDim, int kGroups, bool kUnified>
struct KeyProducer {
  using Shape = prefill::Shape<kDim, kGroups>;
  const PrefillArgs& a;
  const PrefillOrder& order;
  const Maps& maps;
  const Memory<kDim, kGroups>& memory;
  // With these parities, the first pass over the stages does not wait.
  RingPlace<Shape::kStages> keys{0, 1};
  RingPlace<kQueryStages> queries{0, 1};
  RingPlace<kWorkStages> work{};

  __device__ __forceinline__ void wait_queries() const {
    wait_barrier(shared_address(&memory.shared.queries_empty[queries.stage]), queries.parity);
  }
  // Announces work of a kind that has no queries.
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

  // Waits until all earlier work is done, and returns how many items have failed.
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

  // Every item is tried relative to the unified maximum first, whatever this thread block has
  // computed before: its bits do not depend on which thread block takes it or when.
  __device__ __forceinline__ void run(int lane) {
    int piece = static_cast<int>(blockIdx.x);
    int repeated = -1, failures = 0;  // `repeated`: the next failed item to repeat
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

// The warp that loads the values of the work items that KeyProducer announces.
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
