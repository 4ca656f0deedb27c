// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <fstream>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "base/cpu_list.h"
#include "base/error.h"
#include "base/numa.h"

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
  int spins = kSpins;
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
      for (int spin = 0; now == seen && spin < spins; ++spin) {
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

ThreadPool::ThreadPool(int threads) : ThreadPool(ThreadPlacement{threads, {}}) {}

ThreadPool::ThreadPool(const ThreadPlacement& placement)
    : threads_(placement.threads), state_(std::make_unique<State>()) {
  SPW_CHECK(threads_ >= 0 && threads_ <= 4096, kInvalidArgument,
            "{} threads asked for; give 1 to 4096", threads_);
  const int available = available_threads();
  if (threads_ == 0) threads_ = available;
  // Where threads share a core, one that spins keeps another from working.
  if (threads_ > available) state_->spins = 0;
  state_->errors.resize(static_cast<size_t>(threads_));
  try {
    for (int worker = 1; worker < threads_; ++worker) {
      std::vector<int> cpus;
      if (static_cast<size_t>(worker) < placement.cpus.size())
        cpus = placement.cpus[static_cast<size_t>(worker)];
      state_->workers.emplace_back([state = state_.get(), worker, cpus = std::move(cpus)] {
        if (!cpus.empty()) static_cast<void>(try_restrict_this_thread(cpus));
        state->work(worker);
      });
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
    if (spin < s.spins) {
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

ThreadPlacement place_threads(int threads, const std::vector<int>& cpus) {
  if (cpus.empty()) {
    if (threads == 0) threads = available_threads();
    return {threads, spread_over_nodes(threads, numa_nodes())};
  }
  const auto count = static_cast<int>(cpus.size());
  if (threads == 0) threads = count;
  SPW_CHECK(threads <= count, kInvalidArgument, "{} threads do not fit on {} processors", threads,
            count);
  const std::vector<int> allowed = allowed_cpus();
  ThreadPlacement placement{threads, {}};
  for (int i = 0; i < threads; ++i) {
    const int cpu = cpus[static_cast<size_t>(i)];
    SPW_CHECK(std::find(allowed.begin(), allowed.end(), cpu) != allowed.end(), kInvalidArgument,
              "processor {} does not exist here or may not be used", cpu);
    placement.cpus.push_back({cpu});
  }
  return placement;
}

int available_threads() {
  int threads = static_cast<int>(allowed_cpus().size());
  if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  const int quota = try_cpu_quota().value_or(threads);
  return std::max(1, std::min(threads, quota));
}

}  // namespace spillway
