// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <fstream>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/core_budget.h"
#include "base/cpu_list.h"
#include "base/error.h"
#include "base/kernel_times.h"
#include "base/numa.h"

namespace spillway {
namespace {

using Clock = std::chrono::steady_clock;

// Workers spin this long: enough to bridge the gap between two ops of one step, too short to cost
// much when idle or where another thread wants this processor.
constexpr auto kSpinTime = std::chrono::microseconds(100);
// Workers spin this long between two of the CPU's ops in a step that the GPU computes as well,
// since waking up takes half as long as a small op.
constexpr auto kPatientTime = std::chrono::microseconds(1000);
// The number of pauses between two readings of the clock.
constexpr int kSpins = 64;
// Worked time between two checks of how long workers waited for a processor. It is long enough that
// the kernel has scheduled all threads several times.
constexpr auto kWindow = std::chrono::milliseconds(20);
// The interval while some workers rest is longer because the idle times, which are read then, take
// the kernel a while to add up.
constexpr auto kRestingWindow = std::chrono::milliseconds(250);
// The number of jobs between two readings of the clock.
constexpr int kJobsPerLook = 16;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Spins until done() or until `time` is over; returns done().
template <class Done>
bool spin_until(Clock::duration time, Done&& done) {
  if (time == Clock::duration::zero()) return done();
  for (Clock::time_point end{};;) {
    for (int i = 0; i < kSpins; ++i) {
      if (done()) return true;
      pause_cpu();
    }
    const Clock::time_point now = Clock::now();
    if (end == Clock::time_point{}) end = now + time;
    if (now >= end) return done();
  }
}

}  // namespace

struct ThreadPool::State {
  explicit State(int threads) : shares(threads), budget(threads), delays(threads) {}

  WorkShares shares;
  // These describe the current job. They are written before its shares are dealt and read after a
  // piece was taken; none of them changes while a piece is being computed.
  std::atomic<Job> job{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<uint32_t> units{0};
  alignas(64) std::atomic<uint32_t> finished{0};  // in units

  alignas(64) std::atomic<uint32_t> generation{0};  // incremented to start a job
  std::atomic<int> active{0};                       // workers below this number look for jobs
  std::atomic<bool> stop{false};
  Clock::duration spin_time = kSpinTime;  // of the caller at a job's end
  std::atomic<Clock::duration> idle_time{Clock::duration(kSpinTime)};  // of workers between jobs
  std::vector<std::thread> workers;

  std::mutex error_mutex;
  std::exception_ptr error;  // from the piece that begins first among those that threw
  int64_t error_at = 0;

  // These measure how long workers waited for a processor. Only the caller reads them; each worker
  // sets its own delay before it increments `started`.
  CoreBudget budget;
  std::vector<RunDelay> delays;
  std::atomic<int> started{1};
  std::thread::id caller;
  int jobs = 0;
  Clock::time_point window_start{};
  std::optional<int64_t> waited_before;
  std::optional<double> idle_before;
  std::vector<int> cpus = allowed_cpus();  // workers may run on these

  void work(int worker) {
    delays[static_cast<size_t>(worker)] = RunDelay::of_this_thread();
    started.fetch_add(1, std::memory_order_release);
    for (uint32_t seen = 0;;) {
      const int now_active = active.load(std::memory_order_acquire);
      if (worker >= now_active && !stop.load(std::memory_order_acquire)) {
        active.wait(now_active, std::memory_order_acquire);
        continue;
      }
      const auto is_new = [&] { return generation.load(std::memory_order_acquire) != seen; };
      if (!spin_until(idle_time.load(std::memory_order_relaxed), is_new)) {
        generation.wait(seen, std::memory_order_acquire);
        continue;
      }
      seen = generation.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      take_pieces(worker);
    }
  }

  void take_pieces(int worker) {
    uint32_t mine = 0, all = 0;
    for (;;) {
      const WorkPiece piece = shares.take(worker);
      if (piece.empty()) break;
      all = units.load(std::memory_order_relaxed);
      try {
        job.load(std::memory_order_relaxed)(context.load(std::memory_order_relaxed), piece.begin,
                                            piece.end, worker);
      } catch (...) {
        const std::scoped_lock lock(error_mutex);
        if (!error || piece.begin < error_at) {
          error = std::current_exception();
          error_at = piece.begin;
        }
      }
      mine += static_cast<uint32_t>(piece.end - piece.begin);
    }
    // Each worker adds its units once, at its end: until then the job cannot be over, so that all
    // its pieces were of the same job.
    if (mine > 0 && finished.fetch_add(mine, std::memory_order_acq_rel) + mine == all)
      finished.notify_one();
  }

  void start(Job what, void* with, int64_t count, int workers_used, int64_t least) {
    job.store(what, std::memory_order_relaxed);
    context.store(with, std::memory_order_relaxed);
    units.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
    finished.store(0, std::memory_order_relaxed);
    shares.deal(count, workers_used, least);
    generation.fetch_add(1, std::memory_order_acq_rel);
    generation.notify_all();
  }

  void wait(uint32_t count) {
    const auto is_done = [&] { return finished.load(std::memory_order_acquire) == count; };
    while (!spin_until(spin_time, is_done)) {
      // While this thread sleeps, a worker that lost its processor can use this one.
      const uint32_t so_far = finished.load(std::memory_order_acquire);
      if (so_far != count) finished.wait(so_far, std::memory_order_acquire);
    }
  }

  std::optional<int64_t> try_waited() const {
    if (started.load(std::memory_order_acquire) < static_cast<int>(delays.size())) return {};
    int64_t sum = 0;
    for (int i = 0; i < active.load(std::memory_order_relaxed); ++i) {
      const auto delay = delays[static_cast<size_t>(i)].try_nanoseconds();
      if (!delay) return {};
      sum += *delay;
    }
    return sum;
  }

  // Idle time is read only while the budget uses it.
  std::optional<double> try_idle() const {
    return budget.rests() ? try_idle_seconds(cpus) : std::nullopt;
  }

  // Returns how many workers the next job is for.
  int look_around() {
    if (++jobs < kJobsPerLook) return budget.active();
    jobs = 0;
    const Clock::time_point now = Clock::now();
    const auto time = now - window_start;
    if (time < (budget.rests() ? kRestingWindow : kWindow)) return budget.active();
    if (caller != std::this_thread::get_id()) {
      caller = std::this_thread::get_id();
      delays[0] = RunDelay::of_this_thread();
      waited_before.reset();
    }
    const std::optional<int64_t> waited = try_waited();
    const std::optional<double> idle = try_idle();
    // A sleeping thread does not wait for a processor, so that time without work counts as
    // undisturbed.
    if (waited && waited_before) {
      std::optional<double> idle_s;
      if (idle && idle_before) idle_s = *idle - *idle_before;
      budget.add_window(std::chrono::duration<double>(time).count(),
                        static_cast<double>(*waited - *waited_before) * 1e-9, idle_s);
      if (budget.active() != active.load(std::memory_order_relaxed)) {
        active.store(budget.active(), std::memory_order_release);
        active.notify_all();
      }
    }
    waited_before = try_waited();  // read again, for the workers that are active now
    idle_before = try_idle();
    window_start = Clock::now();
    return budget.active();
  }

  void stop_all() {
    stop.store(true, std::memory_order_release);
    active.fetch_add(1 << 16, std::memory_order_acq_rel);  // any change wakes waiting workers
    active.notify_all();
    generation.fetch_add(1, std::memory_order_acq_rel);
    generation.notify_all();
    for (auto& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int threads) : ThreadPool(ThreadPlacement{threads, {}}) {}

ThreadPool::ThreadPool(const ThreadPlacement& placement) : threads_(placement.threads), active_(0) {
  SPW_CHECK(threads_ >= 0 && threads_ <= 4096, kInvalidArgument,
            "{} threads were requested; give 1 to 4096", threads_);
  const int available = available_threads();
  if (threads_ == 0) threads_ = available;
  active_ = threads_;
  state_ = std::make_unique<State>(threads_);
  state_->active.store(threads_, std::memory_order_relaxed);
  // If threads share a core, a spinning one keeps another from working.
  if (threads_ > available) {
    state_->spin_time = {};
    state_->idle_time = Clock::duration{};
  }
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

void ThreadPool::expect_jobs(bool soon) {
  if (state_->spin_time == Clock::duration{}) return;
  state_->idle_time.store(soon ? Clock::duration(kPatientTime) : Clock::duration(kSpinTime),
                          std::memory_order_relaxed);
}

ThreadPool::~ThreadPool() { state_->stop_all(); }

void ThreadPool::dispatch(Job job, void* context, int64_t units, int64_t least) {
  State& s = *state_;
  active_ = s.look_around();
  if (active_ == 1) {  // there is no other worker to share with or to wait for
    job(context, 0, units, 0);
    return;
  }
  s.start(job, context, units, active_, least);
  s.take_pieces(0);
  s.wait(static_cast<uint32_t>(units));
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

namespace {

// Returns a container's share of processor time in whole processors (cgroup v2), or nullopt if it
// has no limit.
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
