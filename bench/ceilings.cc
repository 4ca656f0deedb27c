// SPDX-License-Identifier: Apache-2.0
// ceilings: measures what these cores can do at most: read memory, and multiply with each
// instruction they have. The speed of kernels is judged as a share of these figures, measured in
// the same session.
#include <fmt/core.h>
#include <sched.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/peak_loop.h"
#include "bench/read_bandwidth.h"
#include "bench/worker_team.h"
#include "cpu/features.h"
#include "cpu/processor.h"

namespace spillway {
namespace {

using nlohmann::json;

// Returns the loops that this processor can run.
std::vector<const PeakLoop*> runnable_loops() {
  [[maybe_unused]] const CpuFeatures& cpu = cpu_features();
  std::vector<const PeakLoop*> loops;
  [[maybe_unused]] const auto add = [&](bool has, const PeakLoop& loop) {
    if (has) loops.push_back(&loop);
  };
#if defined(__aarch64__)
  add(true, kNeonLoop);
  add(cpu.fp16, kFp16Loop);
  add(cpu.fp16fml, kFp16FmlLoop);
  add(cpu.bf16, kBfdotLoop);
  add(cpu.bf16, kBfmmlaLoop);
  add(cpu.dotprod, kDotprodLoop);
  add(cpu.i8mm, kI8mmLoop);
#elif defined(__x86_64__)
  add(cpu.avx2, kAvx2Loop);
  add(cpu.avx512_vnni, kAvx512Loop);
  add(cpu.avx512_vnni, kVnniLoop);
  add(cpu.avx512_bf16, kAvx512Bf16Loop);
  add(cpu.amx_bf16, kAmxBf16Loop);
  add(cpu.amx_int8, kAmxInt8Loop);
#endif
  return loops;
}

// Pins worker i to the i-th processor that this process may use, so that no two share one while
// there are enough.
void pin(WorkerTeam& pool) {
  cpu_set_t allowed;
  SPW_CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0, kDevice, "no affinity mask");
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &allowed)) processors.push_back(i);
  }
  pool.run([&](int worker) {
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(processors[static_cast<size_t>(worker) % processors.size()], &own);
    sched_setaffinity(0, sizeof(own), &own);  // if it is refused, the kernel chooses
  });
}

struct Rate {
  double best = 0, median = 0;
};

// Measures several times how many units of `work` all workers together do per second.
template <class Fn>
Rate measure(WorkerTeam& pool, double work, int repeat, Fn&& fn) {
  std::vector<double> rates;
  for (int i = 0; i < repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(fn);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    rates.push_back(work / took.count());
  }
  std::sort(rates.begin(), rates.end());
  return {rates.back(), rates[rates.size() / 2]};
}

// Anonymous memory in large pages if the kernel has them; not touched yet.
class Pages {
 public:
  explicit Pages(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    SPW_CHECK(data_ != MAP_FAILED, kOutOfMemory, "no {} bytes to read from; give --mib", bytes);
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

json measure_reading(WorkerTeam& pool, size_t mib, int repeat) {
  // Each thread reads its own part, whose size is a multiple of the large page and of what 8
  // streams need.
  constexpr size_t kGrain = size_t{2} << 20;
  const auto threads = static_cast<size_t>(pool.threads());
  const size_t part = std::max(kGrain, (mib << 20) / threads / kGrain * kGrain);
  const Pages pages(part * threads);
  const auto own = [&](int worker) { return pages.data() + static_cast<size_t>(worker) * part; };
  pool.run([&](int worker) { std::memset(own(worker), worker + 1, part); });
  std::atomic<uint64_t> seen{0};
  json variants = json::array();
  double best = 0, best_median = 0;
  for (const int streams : {1, 2, 4, 8}) {
    for (const int prefetch : {0, 1024, 4096}) {
      const Rate rate =
          measure(pool, static_cast<double>(part * threads) / 1e9, repeat, [&](int worker) {
            seen ^= read_all(own(worker), part, {streams, prefetch});
          });
      best = std::max(best, rate.best);
      best_median = std::max(best_median, rate.median);
      variants.push_back({{"streams", streams},
                          {"prefetch_bytes", prefetch},
                          {"best_gb_per_s", rate.best},
                          {"median_gb_per_s", rate.median}});
    }
  }
  return {{"buffer_bytes", part * threads},
          {"best_gb_per_s", best},
          {"best_median_gb_per_s", best_median},
          {"variants", variants}};
}

json measure_peaks(WorkerTeam& pool, int repeat) {
  json peaks = json::array();
  for (const PeakLoop* loop : runnable_loops()) {
    // There are many runs of some 4 ms, so that the best is one that no other program interrupted.
    int64_t rounds = 1024;
    double seconds = 0;
    while (seconds < 0.002) {
      rounds *= 2;
      const auto start = std::chrono::steady_clock::now();
      loop->run(rounds);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    const double work = loop->ops_per_round * static_cast<double>(rounds * 2) * pool.threads();
    const Rate rate = measure(pool, work / 1e9, repeat * 5, [&](int) { loop->run(rounds * 2); });
    peaks.push_back({{"instruction", loop->name},
                     {"operands", loop->operands},
                     {"best_gop_per_s", rate.best},
                     {"median_gop_per_s", rate.median}});
  }
  return peaks;
}

void print_table(const json& result) {
  fmt::print("{}, {} threads ({})\n\n", result["processor"].get<std::string>(),
             result["threads"].get<int>(), result["features"].get<std::string>());
  fmt::print("{:<32} {:>10} {:>10}\n", "reading memory", "best GB/s", "median");
  for (const json& v : result["read"]["variants"]) {
    const int prefetch = v["prefetch_bytes"].get<int>();
    const std::string name = fmt::format("{} stream{} per thread{}", v["streams"].get<int>(),
                                         v["streams"] == 1 ? "" : "s",
                                         prefetch > 0 ? fmt::format(", {} B ahead", prefetch) : "");
    fmt::print("{:<32} {:>10.1f} {:>10.1f}\n", name, v["best_gb_per_s"].get<double>(),
               v["median_gb_per_s"].get<double>());
  }
  fmt::print("\n{:<32} {:>10} {:>10}\n", "multiplying (mul + add = 2)", "best Gop/s", "median");
  for (const json& p : result["peaks"]) {
    fmt::print("{:<32} {:>10.0f} {:>10.0f}\n",
               p["instruction"].get<std::string>() + ", " + p["operands"].get<std::string>(),
               p["best_gop_per_s"].get<double>(), p["median_gop_per_s"].get<double>());
  }
}

}  // namespace

json measure_ceilings(int threads, size_t mib, int repeat) {
  WorkerTeam pool(threads);
  pin(pool);
  return {{"processor", processor_name()},
          {"features", processor_features()},
          {"threads", pool.threads()},
          {"read", measure_reading(pool, mib, repeat)},
          {"peaks", measure_peaks(pool, repeat)}};
}

}  // namespace spillway

int main(int argc, char** argv) {
  CLI::App app{"Measures how fast these cores read memory and multiply.", "ceilings"};
  int threads = 0, repeat = 7;
  size_t mib = 1024;
  bool as_json = false;
  app.add_option("--threads", threads, "threads, each on a core of its own; 0 = all");
  app.add_option("--mib", mib, "memory to read, in all")->capture_default_str();
  app.add_option("--repeat", repeat,
                 "measurements of each read loop; five times as many of each peak")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_flag("--json", as_json, "one JSON object");
  CLI11_PARSE(app, argc, argv);
  try {
    const auto result = spillway::measure_ceilings(threads, mib, repeat);
    if (as_json) {
      fmt::print("{}\n", result.dump());
    } else {
      spillway::print_table(result);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "ceilings: {}\n", error.what());
    return 1;
  }
  return 0;
}
