// SPDX-License-Identifier: Apache-2.0
// Threads that all do the same work at the same time, each exactly once, for measuring what a
// machine can do at most. (ThreadPool gives work to any thread that is free.)
#pragma once

#include <barrier>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread_pool.h"

namespace spillway {

// The caller is worker 0. Only one run() may be active at a time.
class WorkerTeam {
 public:
  // 0 means as many as this process may use.
  explicit WorkerTeam(int threads)
      : threads_(threads > 0 ? threads : available_threads()), start_(threads_), end_(threads_) {
    for (int worker = 1; worker < threads_; ++worker) {
      others_.emplace_back([this, worker] {
        for (;;) {
          start_.arrive_and_wait();
          if (!work_) return;
          work_(worker);
          end_.arrive_and_wait();
        }
      });
    }
  }
  ~WorkerTeam() {
    work_ = nullptr;
    start_.arrive_and_wait();
    for (std::thread& other : others_) other.join();
  }
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  int threads() const { return threads_; }

  // Calls fn(worker) on every worker at the same time. fn must not throw.
  void run(std::function<void(int)> fn) {
    work_ = std::move(fn);
    start_.arrive_and_wait();
    work_(0);
    end_.arrive_and_wait();
  }

 private:
  int threads_;
  std::function<void(int)> work_;
  std::barrier<> start_, end_;
  std::vector<std::thread> others_;
};

}  // namespace spillway
