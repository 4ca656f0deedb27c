// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <fstream>
#include <optional>
#include <system_error>
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

  void stop_all() {
    stop.store(true, std::memory_order_release);
    generation.fetch_add(1, std::memory_order_acq_rel);
    generation.notify_all();
    for (auto& worker : workers) worker.join();
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
  try {
    for (int worker = 1; worker < threads_; ++worker) {
      state_->workers.emplace_back([state = state_.get(), worker] { state->work(worker); });
    }
  } catch (const std::system_error& error) {
    const size_t started = state_->workers.size();
    state_->stop_all();
    fail(ErrorCode::kOutOfMemory, "cannot start thread {} of {}: {}; give fewer with --threads",
         started + 2, threads_, error.code().message());
  }
}

ThreadPool::~ThreadPool() { state_->stop_all(); }

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

namespace {

// A container's share of processor time in whole processors (cgroup v2), or nullopt without a
// limit.
std::optional<int> try_cpu_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || period <= 0) return std::nullopt;  // "max 100000"
  return std::max(1, static_cast<int>(std::ceil(quota / period)));
}

}  // namespace

int available_threads() {
  cpu_set_t mask;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) threads = CPU_COUNT(&mask);
  const int quota = try_cpu_quota().value_or(threads);
  return std::max(1, std::min(threads, quota));
}

}  // namespace spillway
