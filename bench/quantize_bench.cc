// SPDX-License-Identifier: Apache-2.0
// Measures compressing weights while they load, on one core: plain rows to groups of 4 bits, and
// packing these. Bytes are those of the plain weights.
#include <benchmark/benchmark.h>

#include <vector>

#include "tensor/packed_layout.h"
#include "tensor/quantize_g4.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

constexpr int64_t kRows = 64, kCols = 4096;

void run_quantize(benchmark::State& state, DType from, bool pack) {
  std::vector<std::byte> plain(static_cast<size_t>(row_bytes(from, kRows * kCols)));
  fill_random(from, plain.data(), kRows * kCols, 1, 0.02F);
  std::vector<std::byte> out(static_cast<size_t>(row_bytes(DType::kG4, kRows * kCols)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(quantize_g4(from, plain.data(), out.data(), kRows * kCols));
    if (pack) pack_groups(DType::kG4, out.data(), out.data(), kRows / kGroupRows, kCols);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(plain.size()));
}

BENCHMARK_CAPTURE(run_quantize, f32, DType::kF32, false);
BENCHMARK_CAPTURE(run_quantize, f16, DType::kF16, false);
BENCHMARK_CAPTURE(run_quantize, bf16, DType::kBF16, false);
BENCHMARK_CAPTURE(run_quantize, f16_packed, DType::kF16, true);

}  // namespace
}  // namespace spillway
