// SPDX-License-Identifier: Apache-2.0
// When it pays to wake the other workers.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace spillway {

// A fork and join costs a few microseconds: below about this many element operations one thread is
// faster.
inline constexpr int64_t kForkWork = 32768;

// pool.parallel_for, or one plain call when `work` (element operations in all) is small.
template <class Fn>
void parallel_if_large(ThreadPool& pool, int64_t work, int64_t count, int64_t grain, Fn&& fn) {
  if (count <= 0) return;
  if (work < kForkWork) {
    fn(int64_t{0}, count, 0);
  } else {
    pool.parallel_for(count, grain, fn);
  }
}

}  // namespace spillway
