// SPDX-License-Identifier: Apache-2.0
// Matrix products of every stored type, from one token (decode) over small batches to 512
// (prefill). linear/... is the layout that the device packs weights into, rows/... the file's,
// where that is another. Names can be filtered:
//   linear_bench --threads 2 --benchmark_filter='linear/Q4_0/tinyllama.*/tokens:(1|512)/'
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include "cpu/cpu_device.h"
#include "tensor/packed_layout.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

struct Shape {
  const char* name;
  int64_t n, k;
};
constexpr Shape kShapes[] = {
    {"tinyllama.attn_kv", 256, 2048}, {"tinyllama.attn_out", 2048, 2048},
    {"tinyllama.up", 5632, 2048},     {"tinyllama.down", 2048, 5632},
    {"tinyllama.head", 32000, 2048},  {"llama-2-7b.attn_out", 4096, 4096},
    {"llama-2-7b.up", 11008, 4096},   {"llama-2-7b.down", 4096, 11008},
    {"llama-2-7b.head", 32000, 4096},
};
constexpr int64_t kColdBytes = int64_t{256} << 20;  // more than any cache holds

Activations as_matrix(const Buffer& buffer, int64_t rows, int64_t cols) {
  return {DType::kF32, rows, cols, cols, buffer.data()};
}

// Copies of a matrix that are used in turn, so that its weights come from memory each time.
struct ColdMatrix {
  ColdMatrix(CpuDevice& device, DType type_, WeightLayout layout_, Shape shape_)
      : type(type_),
        layout(layout_),
        shape(shape_),
        bytes(row_bytes(type_, shape_.n * shape_.k)),
        copies((kColdBytes + bytes - 1) / bytes),
        buffer(device.allocate(static_cast<size_t>(bytes * copies), MemoryTag::kWeights)) {
    fill_random(type, buffer.data(), shape.n * shape.k * copies, 1, 0.02F);
    if (layout == WeightLayout::kGroups16) {
      pack_groups(type, buffer.data(), buffer.data(), shape.n * copies / kGroupRows, shape.k);
    }
  }
  bool is(DType other_type, WeightLayout other_layout, Shape other) const {
    return type == other_type && layout == other_layout && shape.name == other.name;
  }
  WeightView view(int64_t copy) const {
    return {type, shape.n, shape.k, buffer.data() + copy % copies * bytes, layout};
  }

  DType type;
  WeightLayout layout;
  Shape shape;
  int64_t bytes, copies;
  Buffer buffer;
};

void run_linear(benchmark::State& state, CpuDevice& device, DType type, WeightLayout layout,
                Shape shape, int64_t tokens) {
  // Kept for the next number of tokens.
  static std::optional<ColdMatrix> matrix;
  if (!matrix || !matrix->is(type, layout, shape)) {
    matrix.reset();
    matrix.emplace(device, type, layout, shape);
  }
  const auto x_buffer =
      device.allocate(static_cast<size_t>(tokens * shape.k) * 4, MemoryTag::kActivations);
  const auto out_buffer =
      device.allocate(static_cast<size_t>(tokens * shape.n) * 4, MemoryTag::kActivations);
  fill_random(DType::kF32, x_buffer.data(), tokens * shape.k, 2, 1);
  const Activations x = as_matrix(x_buffer, tokens, shape.k);
  const Activations out = as_matrix(out_buffer, tokens, shape.n);
  int64_t copy = 0;
  for (auto _ : state) {
    device.ops().linear(matrix->view(copy++), {}, x, out, LinearMode::kStore);
  }
  const auto rate = [](double value) {
    return benchmark::Counter(value / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["GB/s"] = rate(static_cast<double>(matrix->bytes));
  state.counters["GFLOP/s"] = rate(2.0 * static_cast<double>(tokens * shape.n * shape.k));
}

void register_all(CpuDevice& device) {
  for (const DType type : kAllDTypes) {
    for (const Shape& shape : kShapes) {
      const WeightLayout preferred = device.preferred_layout(type, shape.n, shape.k);
      for (const WeightLayout layout : {preferred, WeightLayout::kRows}) {
        const bool rows = layout != preferred;
        for (const int64_t tokens : {1, 2, 4, 8, 16, 32, 64, 512}) {
          const std::string name = (rows ? "rows/" : "linear/") + std::string(dtype_name(type)) +
                                   "/" + shape.name + "/tokens:" + std::to_string(tokens);
          benchmark::RegisterBenchmark(name.c_str(), run_linear, std::ref(device), type, layout,
                                       shape, tokens)
              ->UseRealTime()
              ->Unit(benchmark::kMillisecond);
        }
        if (preferred == WeightLayout::kRows) break;  // there is no other
      }
    }
  }
}

// Takes "--threads N" off the command line; 0, all of them, where it is not given.
int take_threads(int& argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--threads") != 0) continue;
    const int threads = std::atoi(argv[i + 1]);
    for (int j = i; j + 2 <= argc; ++j) argv[j] = argv[j + 2];  // the last one is null
    argc -= 2;
    return threads;
  }
  return 0;
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  const int threads = spillway::take_threads(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  spillway::CpuDevice device({.threads = threads});
  spillway::register_all(device);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
