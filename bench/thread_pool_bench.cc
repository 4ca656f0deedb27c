// SPDX-License-Identifier: Apache-2.0
// Measures the cost of a fork and join by the number of threads, from which fork_work()
// (cpu/parallel.h) follows.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/parallel.h"

namespace spillway {
namespace {

void empty_fork(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.parallel_for(2 * pool.threads(), 1, [](int64_t begin, int64_t end, int worker) {
      benchmark::DoNotOptimize(begin + end + worker);
    });
  }
  state.SetItemsProcessed(state.iterations());
}

// Does the kind of work that parallel_if_large() counts: multiply-adds on floats in the first-level
// cache. The threshold should be where `forked` becomes the faster of the two.
void small_work(benchmark::State& state) {
  const bool forked = state.range(2) != 0;
  ThreadPool pool(static_cast<int>(state.range(0)));
  const int64_t count = state.range(1);
  std::vector<float> values(static_cast<size_t>(count), 1.0F);
  const auto work = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      values[static_cast<size_t>(i)] = values[static_cast<size_t>(i)] * 0.999F + 0.5F;
    }
    benchmark::ClobberMemory();
  };
  for (auto _ : state) {
    if (forked) {
      pool.parallel_for(count, 16, work);
    } else {
      work(0, count, 0);
    }
  }
  state.SetItemsProcessed(state.iterations() * count);
}

void thread_counts(benchmark::internal::Benchmark* b) {
  for (int threads = 1; threads <= available_threads(); threads *= 2) b->Arg(threads);
}
void work_sizes(benchmark::internal::Benchmark* b) {
  for (int threads = 2; threads <= available_threads(); threads *= 2) {
    const int64_t threshold = fork_work(threads);
    for (const int64_t work : {threshold / 4, threshold, threshold * 4, threshold * 16}) {
      b->Args({threads, work, 0})->Args({threads, work, 1});
    }
  }
}

BENCHMARK(empty_fork)->Apply(thread_counts)->ArgName("threads")->UseRealTime();
BENCHMARK(small_work)->Apply(work_sizes)->ArgNames({"threads", "work", "forked"})->UseRealTime();

}  // namespace
}  // namespace spillway
