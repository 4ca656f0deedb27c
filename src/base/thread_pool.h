// SPDX-License-Identifier: Apache-2.0
// A fork-join pool for kernels: idle workers take pieces of the current job, wake up in
// microseconds, do not spin for long, and are fewer while other programs need the processors.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/work_shares.h"

namespace spillway {

// How many threads, and where each of them runs.
struct ThreadPlacement {
  int threads = 0;                          // 0 means as many as this process may use
  std::vector<std::vector<int>> cpus = {};  // the processors of each worker; empty means anywhere
};

// Places one thread on each of `cpus` (on the first `threads` of them, unless that is 0); without
// `cpus`, spreads threads over the NUMA nodes if the machine has several. Throws kInvalidArgument
// for more threads than cpus and for a processor that this process may not use.
ThreadPlacement place_threads(int threads, const std::vector<int>& cpus = {});

// Owns threads() - 1 worker threads; the caller is worker 0. Only one parallel call may run at a
// time (the engine's thread makes them); not re-entrant. It is not a task library because a decode
// step is several hundred joins of a few microseconds each. Which worker computes which piece, and
// how large pieces are, depends on timing; what a piece computes must not depend on either, so that
// results do not.
//
// A job never waits for a worker that has not begun: if another program uses a worker's processor,
// that delays the others by one piece at most. If processors are taken away for long, jobs are
// dealt to fewer workers (CoreBudget).
class ThreadPool {
 public:
  // 0 means as many threads as this process may use. Throws kOutOfMemory if they cannot all be
  // started.
  explicit ThreadPool(int threads = 0);
  // Like the constructor above, with each worker on its processors. The caller's own affinity is
  // left unchanged, because it also starts threads that must not share a core with it.
  explicit ThreadPool(const ThreadPlacement& placement);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Sets whether the next job will come soon after the last: if so, idle workers spin for longer
  // than usual. No effect if threads share processors.
  void expect_jobs(bool soon);

  // Returns how many workers jobs are dealt to now: all, unless other programs use the processors.
  int active() const { return active_; }

  // Splits [0, count) into pieces whose bounds are multiples of `grain` (the last may be shorter),
  // calls fn(begin, end, worker) for each on that worker's thread, and returns when all are done. A
  // piece has at least `least` grains while that many are left. If pieces throw, the others are
  // computed all the same; then the exception of the first piece that threw is rethrown here.
  template <class Fn>
  void parallel_for(int64_t count, int64_t grain, Fn&& fn, int64_t least = 1) {
    if (count <= 0) return;
    const int64_t grains = (count + grain - 1) / grain;
    if (threads_ == 1 || grains <= least) {
      fn(int64_t{0}, count, 0);
      return;
    }
    // Pieces are counted in units of one or more grains, because there can be at most kMostUnits.
    const int64_t unit = (grains + WorkShares::kMostUnits - 1) / WorkShares::kMostUnits * grain;
    const int64_t units = (count + unit - 1) / unit;
    auto piece = [&](int64_t first, int64_t last, int worker) {
      fn(first * unit, last * unit < count ? last * unit : count, worker);
    };
    using Piece = decltype(piece);
    dispatch([](void* context, int64_t first, int64_t last,
                int worker) { (*static_cast<Piece*>(context))(first, last, worker); },
             &piece, units, least * grain / unit);
  }

 private:
  struct State;
  using Job = void (*)(void* context, int64_t first, int64_t last, int worker);
  void dispatch(Job job, void* context, int64_t units, int64_t least);

  int threads_;
  int active_;
  std::unique_ptr<State> state_;
};

// Returns how many threads this process may run concurrently (affinity mask, container quota), at
// least 1.
int available_threads();

}  // namespace spillway
