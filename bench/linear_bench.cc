// SPDX-License-Identifier: Apache-2.0
// Matrix products of every stored type, decode (1 token), small batches and prefill (512 tokens),
// in the file's layout and, where the processor has kernels for it, packed.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

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
    {"smollm2-135m.attn_out", 576, 576}, {"smollm2-135m.up", 1536, 576},
    {"smollm2-135m.down", 576, 1536},    {"smollm2-135m.head", 49152, 576},
    {"tinyllama.attn_out", 2048, 2048},  {"tinyllama.up", 5632, 2048},
    {"tinyllama.down", 2048, 5632},      {"tinyllama.head", 32000, 2048},
};

Activations as_matrix(const Buffer& buffer, int64_t rows, int64_t cols) {
  return {DType::kF32, rows, cols, cols, buffer.data()};
}

// One token streams weights from memory: `copies` of the matrix are used in turn, so that no cache
// holds them.
void run_linear(benchmark::State& state, DType type, WeightLayout layout, Shape shape,
                int64_t tokens) {
  CpuDevice device;
  const int64_t matrix_bytes = row_bytes(type, shape.n * shape.k);
  const int64_t copies = tokens > 8 ? 1 : 1 + (int64_t{256} << 20) / matrix_bytes;
  const auto buffer =
      device.allocate(static_cast<size_t>(matrix_bytes * copies), MemoryTag::kWeights);
  fill_random(type, buffer.data(), shape.n * shape.k * copies, 1, 0.02F);
  if (layout == WeightLayout::kGroups16) {
    pack_groups(type, buffer.data(), buffer.data(), shape.n * copies / kGroupRows, shape.k);
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
    const WeightView w{type, shape.n, shape.k, buffer.data() + copy * matrix_bytes, layout};
    device.ops().linear(w, {}, x, out, LinearMode::kStore);
    copy = (copy + 1) % copies;
  }
  state.SetBytesProcessed(state.iterations() * matrix_bytes);
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(tokens * shape.n * shape.k),
                         benchmark::Counter::kIsIterationInvariantRate);
}

const bool kRegistered = [] {
  const CpuDevice device({.threads = 1});
  for (const WeightLayout layout : {WeightLayout::kRows, WeightLayout::kGroups16}) {
    const bool packed = layout == WeightLayout::kGroups16;
    for (const DType type : kAllDTypes) {
      for (const Shape& shape : kShapes) {
        if (shape.k % dtype_info(type).block_elements != 0) continue;
        if (packed && device.preferred_layout(type, shape.n, shape.k) != layout) continue;
        for (const int64_t tokens : {1, 2, 4, 8, 16, 32, 64, 512}) {
          if (!packed && tokens != 1 && tokens != 8 && tokens != 512) continue;
          const std::string name = (packed ? "packed/" : "linear/") +
                                   std::string(dtype_name(type)) + "/" + shape.name +
                                   "/tokens:" + std::to_string(tokens);
          benchmark::RegisterBenchmark(name.c_str(), run_linear, type, layout, shape, tokens)
              ->UseRealTime()
              ->Unit(benchmark::kMillisecond);
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace spillway
