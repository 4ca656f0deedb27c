// SPDX-License-Identifier: Apache-2.0
// A fork-join pool for kernels: work is dealt in pieces to whoever has time, microsecond wake-up,
// no spinning when idle, fewer workers where others need the processors.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/work_shares.h"

namespace spillway {

// How many threads, and where each of them runs.
struct ThreadPlacement {
  int threads = 0;                          // 0 = as many as this process may use
  std::vector<std::vector<int>> cpus = {};  // of each worker; empty: anywhere
};

// One thread on each of `cpus` (at most `threads` of them, unless that is 0); without any, spread
// over the nodes of the machine where it has several. Throws kInvalidArgument for more threads than
// cpus and for one that this process may not use.
ThreadPlacement place_threads(int threads, const std::vector<int>& cpus = {});

// Owns threads() - 1 worker threads; the caller is worker 0. One parallel call at a time (the
// engine's thread); not re-entrant. Why not a task library: a decode step is several hundred joins
// of a few microseconds each. Who computes which piece, and how large pieces are, depends on
// timing; what a piece computes must not depend on either, so that results do not.
//
// Nobody waits for a worker that has not begun: one whose processor is busy with something else
// costs the others a piece at most. Where processors are taken away for long, jobs are dealt to
// fewer workers (CoreBudget).
class ThreadPool {
 public:
  // 0 = as many as this process may use. Throws kOutOfMemory when they cannot all be started.
  explicit ThreadPool(int threads = 0);
  // As above, with each worker where it should be. The caller stays where it is: it also starts
  // threads that must not share a core with it.
  explicit ThreadPool(const ThreadPlacement& placement);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Whether the next job comes soon after the last: workers then wait for it awake, for longer than
  // they would. Where threads share processors they do not.
  void expect_jobs(bool soon);

  // Those that jobs are dealt to now: all, unless processors are busy elsewhere.
  int active() const { return active_; }

  // Cuts [0, count) into pieces whose bounds are multiples of `grain` (the last may be shorter) and
  // calls fn(begin, end, worker) for each, on worker's thread; returns when all is done. A piece
  // has at least `least` grains where so many are left. After an exception other pieces are
  // computed all the same; then the one of the first piece that threw is rethrown here.
  template <class Fn>
  void parallel_for(int64_t count, int64_t grain, Fn&& fn, int64_t least = 1) {
    if (count <= 0) return;
    const int64_t grains = (count + grain - 1) / grain;
    if (threads_ == 1 || grains <= least) {
      fn(int64_t{0}, count, 0);
      return;
    }
    // A unit is what pieces are counted in; of those there may not be too many.
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

// How many threads this process may run at once (affinity mask, container quota), at least 1.
int available_threads();

}  // namespace spillway
