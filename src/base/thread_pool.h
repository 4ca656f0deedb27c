// SPDX-License-Identifier: Apache-2.0
// A fork-join pool for kernels: the same static split every time, microsecond wake-up, no spinning
// when idle.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

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
// of a few microseconds each, and which worker computes which rows must not depend on timing.
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

  // Calls fn(worker) once for each worker in [0, threads()), and returns when all have returned. An
  // exception thrown by any of them is rethrown here (the first by worker number).
  template <class Fn>
  void run(Fn&& fn) {
    using F = std::remove_reference_t<Fn>;
    dispatch([](void* context, int worker) { (*static_cast<F*>(context))(worker); },
             const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
  }

  // Splits [0, count) into contiguous ranges whose bounds are multiples of `grain` (the last may be
  // shorter) and calls fn(begin, end, worker) for the non-empty ones.
  template <class Fn>
  void parallel_for(int64_t count, int64_t grain, Fn&& fn) {
    if (count <= 0) return;
    const int64_t chunks = (count + grain - 1) / grain;
    const int64_t used = chunks < threads_ ? chunks : threads_;
    if (used == 1) {
      fn(int64_t{0}, count, 0);
      return;
    }
    run([&](int worker) {
      const int64_t first = chunks * worker / threads_ * grain;
      const int64_t last = chunks * (worker + 1) / threads_ * grain;
      const int64_t end = last < count ? last : count;
      if (first < end) fn(first, end, worker);
    });
  }

 private:
  struct State;
  using Job = void (*)(void* context, int worker);
  void dispatch(Job job, void* context);

  int threads_;
  std::unique_ptr<State> state_;
};

// How many threads this process may run at once (affinity mask, container quota), at least 1.
int available_threads();

}  // namespace spillway
