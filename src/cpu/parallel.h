// SPDX-License-Identifier: Apache-2.0
// Decides when it pays to wake the other workers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"

namespace spillway {

// Returns the number of element operations (about 0.1 ns each) below which one thread is faster. A
// fork and join of two spinning threads costs 0.2 us, but some may have to be woken, and each joins
// on one cache line (bench/thread_pool_bench.cc).
constexpr int64_t fork_work(int threads) { return 8192 + int64_t{1024} * threads; }

// Pieces with less work than this are not worth a kernel call: some kernels prefetch what they
// read, and start anew with each piece.
constexpr int64_t kPieceWork = 16384;

// Calls pool.parallel_for, or makes one plain call if `work` (element operations in all) is small.
template <class Fn>
void parallel_if_large(ThreadPool& pool, int64_t work, int64_t count, int64_t grain, Fn&& fn) {
  if (count <= 0) return;
  if (work < fork_work(pool.active())) {
    fn(int64_t{0}, count, 0);
    return;
  }
  const int64_t grains = (count + grain - 1) / grain;
  const int64_t least = kPieceWork * grains / work;  // in grains
  // A piece is at most an even share, so that every worker gets some.
  pool.parallel_for(count, grain, fn, std::min(least, grains / pool.active()));
}

}  // namespace spillway
