// SPDX-License-Identifier: Apache-2.0
// What blocks of Hopper's prefill kernel work on, in which order, and how keys and values come.
//
// A piece of work is one head's tile of rows. Pieces are in sections of so many kv heads that their
// KV stays in L2, in a section those with the most to do first. Blocks take the first pieces by
// their number and, with counters, the others as they get done.
//
// Tiles of keys and values end where the rows do (at the end of that page), and go backwards: only
// the first and the last ones need masks.
#pragma once

#include "cuda/attention/attention_prefill_tile.cuh"
#include "cuda/kernel/async_copy.cuh"

namespace spillway::cuda {

struct PrefillOrder {
  int row_tiles;      // of the longest sequence
  int heads_at_once;  // kv heads of a section
  int pieces;         // row_tiles * heads * sequences
  int32_t* counters;  // [2] pieces taken, blocks done; or null

  // False: surplus.
  __device__ __forceinline__ bool find(const PrefillArgs& a, int tile_rows, int piece,
                                       PrefillPlace& p) const {
    const int per_kv_head = row_tiles * a.group;
    const int section = piece / (heads_at_once * per_kv_head);
    const int rest = piece - section * heads_at_once * per_kv_head;
    const int all = a.kv_heads * a.batch.sequences;
    const int heads = min(heads_at_once, all - section * heads_at_once) * a.group;
    const int row_tile = rest / heads, in_section = rest % heads;
    const int kv_head = section * heads_at_once + in_section / a.group;
    return place_rows(a, tile_rows, row_tiles - 1 - row_tile, kv_head / a.kv_heads,
                      kv_head % a.kv_heads * a.group + in_section % a.group, p);
  }

  // The one after `piece`.
  __device__ __forceinline__ int next(int piece) const {
    const int blocks = static_cast<int>(gridDim.x);
    return counters != nullptr ? blocks + atomicAdd(counters, 1) : piece + blocks;
  }
  // By one thread of each block, when nothing is left.
  __device__ __forceinline__ void leave() const {
    if (counters == nullptr) return;
    __threadfence();
    if (atomicAdd(counters + 1, 1) == static_cast<int>(gridDim.x) - 1)
      counters[0] = counters[1] = 0;
  }
};

// Stages are filled and emptied in turn: the one to go on with, and the parity of its phase.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// A piece, as all warps are told of it. What is written ends at `end`.
struct PrefillWork : PrefillPlace {
  enum Kind : int {
    kOnline,
    kUnified,  // relative to the unified maximum
    kFlush,    // nothing: all before is done
    kStop,
  };
  Kind kind;
  int piece;
  int tokens;  // end of the tiles
  int tiles;
  int failed;  // some row's exponents have left the range
};

}  // namespace spillway::cuda
