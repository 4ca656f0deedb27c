// SPDX-License-Identifier: Apache-2.0
// The work of thread blocks of Hopper's prefill kernel, and its order.
//
// A work item (`piece`) is one head's tile of rows. Items are in sections of a few kv heads each,
// whose KV stays in L2; within a section those with the most work come first. Thread blocks take
// the first items by their number and, with counters, further ones as they finish.
//
// Tiles of keys and values end where the rows do (at the end of that page), and go backwards: only
// the first and the last ones need masks.
#pragma once

#include "cuda/attention/attention_prefill_tile.cuh"
#include "cuda/kernel/async_copy.cuh"

namespace spillway::cuda {

struct PrefillOrder {
  int row_tiles;      // of the longest sequence
  int section_heads;  // kv heads of a section
  int pieces;         // row_tiles * heads * sequences
  int32_t* counters;  // [2]: items taken, thread blocks done; or null

  // Finds the rows of an item. Returns false for a surplus item.
  __device__ __forceinline__ bool find(const PrefillArgs& a, int tile_rows, int piece,
                                       PrefillPlace& p) const {
    const int per_kv_head = row_tiles * a.group;
    const int section = piece / (section_heads * per_kv_head);
    const int rest = piece - section * section_heads * per_kv_head;
    const int all = a.kv_heads * a.batch.sequences;
    const int heads = min(section_heads, all - section * section_heads) * a.group;
    const int row_tile = rest / heads, in_section = rest % heads;
    const int kv_head = section * section_heads + in_section / a.group;
    return place_rows(a, tile_rows, row_tiles - 1 - row_tile, kv_head / a.kv_heads,
                      kv_head % a.kv_heads * a.group + in_section % a.group, p);
  }

  // Returns the item after `piece`.
  __device__ __forceinline__ int next(int piece) const {
    const int blocks = static_cast<int>(gridDim.x);
    return counters != nullptr ? blocks + atomicAdd(counters, 1) : piece + blocks;
  }
  // Called by one thread of each thread block when no work is left.
  __device__ __forceinline__ void leave() const {
    if (counters == nullptr) return;
    __threadfence();
    if (atomicAdd(counters + 1, 1) == static_cast<int>(gridDim.x) - 1)
      counters[0] = counters[1] = 0;
  }
};

// A position in a ring whose stages are filled and emptied round-robin: the current stage, and the
// parity of its phase.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// A work item as KeyProducer announces it to all warps. KV is written up to `end`.
struct PrefillWork : PrefillPlace {
  enum Kind : int {
    kOnline,
    kUnified,  // relative to the unified maximum
    kFlush,    // no work: all earlier items are done when it is released
    kStop,
  };
  Kind kind;
  int piece;
  int tokens;  // where the tiles end
  int tiles;
  int failed;  // some row's exponentials have left the range
};

}  // namespace spillway::cuda
