// SPDX-License-Identifier: Apache-2.0
// Finds what limits AMX tile products on this machine: multiplying alone, loading operands from the
// first-level or the second-level cache, rows as far apart as a model's, and prefetching other
// memory meanwhile. Each is measured with one thread, with half of the threads (no two on a core,
// if the system numbers siblings next to each other) and with all.
//   amx_probe [THREADS]
#include <immintrin.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/worker_team.h"
#include "cpu/features.h"

namespace spillway {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Describes where the operands of a loop lie. A step multiplies into 2 x 2 tiles of sums, with two
// tiles of each operand.
struct Pattern {
  const char* name;
  int64_t a_bytes, a_row, a_step;  // footprint of A; bytes from row to row and from step to step
  int64_t b_bytes;                 // footprint of B, packed
  int prefetches;                  // prefetches of other lines in each step
  bool loads;
};
constexpr int64_t kKiB = 1024;
constexpr Pattern kPatterns[] = {
    {"multiply only", 16 * kKiB, 64, 2048, 8 * kKiB, 0, false},
    {"A, B in L1 (8 KiB each)", 8 * kKiB, 64, 2048, 8 * kKiB, 0, true},
    {"A in L1 (16 KiB), B in L2", 16 * kKiB, 64, 2048, 256 * kKiB, 0, true},
    {"A in L1 (32 KiB), B in L2", 32 * kKiB, 64, 2048, 256 * kKiB, 0, true},
    {"A, B in L2 (256 KiB each)", 256 * kKiB, 64, 2048, 256 * kKiB, 0, true},
    {"A rows 8 KiB apart, B in L2", 256 * kKiB, 8192, 64, 256 * kKiB, 0, true},
    {"A, B in L2, 10 lines asked for", 256 * kKiB, 64, 2048, 256 * kKiB, 10, true},
};
constexpr int64_t kOtherBytes = int64_t{64} << 20;

__attribute__((target("amx-tile,amx-bf16"))) void run(const Pattern& p, const uint8_t* memory,
                                                      int64_t steps) {
  const TileConfig config;
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  const uint8_t *a = memory, *b = memory + p.a_bytes, *other = b + p.b_bytes;
  const int64_t a_steps = p.a_bytes / 2048, b_steps = p.b_bytes / 2048;
  int64_t a_step = 0, b_step = 0, at = 0;
  for (int64_t i = 0; i < steps; ++i) {
    for (int n = 0; n < p.prefetches; ++n, at = (at + 64) % kOtherBytes) {
      _mm_prefetch(reinterpret_cast<const char*>(other + at), _MM_HINT_T1);
    }
    if (p.loads) {
      const uint8_t *rows = a + a_step * p.a_step, *tokens = b + b_step * 2048;
      const int64_t apart = p.a_row == 64 ? 1024 : 16 * p.a_row;
      _tile_loadd(6, tokens, 64);
      _tile_loadd(4, rows, p.a_row);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, tokens + 1024, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, rows + apart, p.a_row);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      a_step = a_step + 1 == a_steps ? 0 : a_step + 1;
      b_step = b_step + 1 == b_steps ? 0 : b_step + 1;
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_release();
}

// Returns the best of some rounds, in GFLOP/s of all working threads together.
double measure(WorkerTeam& pool, const Pattern& p, const std::vector<std::vector<uint8_t>>& memory,
               int every) {
  constexpr int64_t kSteps = 40000;
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    int working = 0;
    for (int i = 0; i < pool.threads(); i += every) ++working;
    pool.run([&](int worker) {
      if (worker % every != 0) return;
      const auto address = reinterpret_cast<uintptr_t>(memory[static_cast<size_t>(worker)].data());
      run(p, reinterpret_cast<const uint8_t*>((address + 4095) / 4096 * 4096), kSteps);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double flops = 4.0 * 2 * 16 * 16 * 32 * kSteps * working;
    best = flops / seconds.count() > best ? flops / seconds.count() : best;
  }
  return best / 1e9;
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  using namespace spillway;
  if (!cpu_features().amx_bf16) {
    std::puts("no AMX here");
    return 0;
  }
  WorkerTeam pool(argc > 1 ? std::atoi(argv[1]) : 0);
  std::vector<std::vector<uint8_t>> memory(static_cast<size_t>(pool.threads()));
  pool.run([&](int worker) {
    // The memory holds numbers other than zero, because the processor's frequency depends on the
    // operands.
    memory[static_cast<size_t>(worker)].assign(static_cast<size_t>(kOtherBytes + 1024 * kKiB),
                                               0x3f);
  });
  std::printf("%-34s %8s %8s %8s  GFLOP/s of all\n", "2 x 2 tiles, bfloat16", "1", "half", "all");
  for (const Pattern& p : kPatterns) {
    std::printf("%-34s %8.0f", p.name, measure(pool, p, memory, pool.threads()));
    std::printf(" %8.0f %8.0f\n", measure(pool, p, memory, 2), measure(pool, p, memory, 1));
    std::fflush(stdout);
  }
  return 0;
}
