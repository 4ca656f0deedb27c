// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "base/error.h"

namespace spillway {
namespace {

// Long enough to bridge the gap between two ops of one step, short enough to cost nothing when
// idle.
constexpr int kSpins = 4000;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace

struct ThreadPool::State {
  std::atomic<uint32_t> generation{0};  // bumped to start a job
  std::atomic<int> pending{0};          // workers that have not finished the current job
  std::atomic<bool> stop{false};
  Job job = nullptr;
  void* context = nullptr;
  std::vector<std::exception_ptr> errors;
  std::vector<std::thread> workers;

  void work(int worker) {
    uint32_t seen = 0;
    for (;;) {
      uint32_t now = generation.load(std::memory_order_acquire);
      for (int spin = 0; now == seen && spin < kSpins; ++spin) {
        pause_cpu();
        now = generation.load(std::memory_order_acquire);
      }
      if (now == seen) {
        generation.wait(seen, std::memory_order_acquire);
        continue;
      }
      seen = now;
      if (stop.load(std::memory_order_acquire)) return;
      run_one(worker);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
    }
  }

  void run_one(int worker) {
    try {
      job(context, worker);
    } catch (...) {
      errors[static_cast<size_t>(worker)] = std::current_exception();
    }
  }
};

ThreadPool::ThreadPool(int threads) : threads_(threads), state_(std::make_unique<State>()) {
  SPW_CHECK(threads >= 0 && threads <= 4096, kInvalidArgument,
            "{} threads asked for; give 1 to 4096", threads);
  if (threads_ == 0) threads_ = available_threads();
  state_->errors.resize(static_cast<size_t>(threads_));
  for (int worker = 1; worker < threads_; ++worker) {
    state_->workers.emplace_back([state = state_.get(), worker] { state->work(worker); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_release);
  state_->generation.fetch_add(1, std::memory_order_acq_rel);
  state_->generation.notify_all();
  for (auto& worker : state_->workers) worker.join();
}

void ThreadPool::dispatch(Job job, void* context) {
  State& s = *state_;
  s.job = job;
  s.context = context;
  if (threads_ > 1) {
    s.pending.store(threads_ - 1, std::memory_order_relaxed);
    s.generation.fetch_add(1, std::memory_order_acq_rel);
    s.generation.notify_all();
  }
  s.run_one(0);
  for (int spin = 0;; ++spin) {
    const int left = s.pending.load(std::memory_order_acquire);
    if (left == 0) break;
    if (spin < kSpins) {
      pause_cpu();
    } else {
      s.pending.wait(left, std::memory_order_acquire);
    }
  }
  std::exception_ptr first;
  for (auto& error : s.errors) {
    if (error && !first) first = error;
    error = nullptr;
  }
  if (first) std::rethrow_exception(first);
}

int available_threads() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return std::max(1, CPU_COUNT(&mask));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace spillway
