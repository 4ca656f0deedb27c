// SPDX-License-Identifier: Apache-2.0
// Attention over paged KV: prefill chunks and decode at several context lengths.
#include <benchmark/benchmark.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "cpu/cpu_device.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

struct Shape {
  const char* name;
  int heads, kv_heads, head_dim;
};
constexpr Shape kShapes[] = {
    {"smollm2-135m", 9, 3, 64}, {"tinyllama", 32, 4, 64}, {"llama-2-7b", 32, 32, 128}};

// `rows` new tokens after `old_tokens` cached ones.
void run_attention(benchmark::State& state, DType type, Shape shape, int32_t rows,
                   int32_t old_tokens) {
  CpuDevice device;
  const int64_t keys = old_tokens + rows;
  const int64_t blocks = (keys + kKvBlockTokens - 1) / kKvBlockTokens;
  const int64_t q_width = int64_t{shape.heads} * shape.head_dim;
  KvLayerView kv{type, blocks, shape.kv_heads, shape.head_dim, nullptr, nullptr};
  const int64_t plane_elements = blocks * kKvBlockTokens * shape.kv_heads * shape.head_dim;
  const auto plane_bytes = static_cast<size_t>(row_bytes(type, plane_elements));
  const auto k = device.allocate(plane_bytes, MemoryTag::kKv);
  const auto v = device.allocate(plane_bytes, MemoryTag::kKv);
  fill_random(type, k.data(), plane_elements, 1, 1);
  fill_random(type, v.data(), plane_elements, 2, 1);
  kv.k = k.data();
  kv.v = v.data();
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);
  const auto q = device.allocate(static_cast<size_t>(rows * q_width) * 4, MemoryTag::kActivations);
  const auto out =
      device.allocate(static_cast<size_t>(rows * q_width) * 4, MemoryTag::kActivations);
  fill_random(DType::kF32, q.data(), rows * q_width, 3, 1);
  const SequenceSpan span{0, rows, old_tokens, table};
  const AttentionParams params{shape.heads, 1 / std::sqrt(static_cast<float>(shape.head_dim)), 0};
  for (auto _ : state) {
    device.ops().attention({DType::kF32, rows, q_width, q_width, q.data()}, kv, {&span, 1}, params,
                           {DType::kF32, rows, q_width, q_width, out.data()});
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(2 * plane_bytes));
  const double pairs = rows * (old_tokens + (rows + 1) / 2.0);
  state.counters["FLOP/s"] = benchmark::Counter(4 * pairs * static_cast<double>(q_width),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

const bool kRegistered = [] {
  for (const DType type : {DType::kF16, DType::kF32}) {
    for (const Shape& shape : kShapes) {
      for (const auto& [rows, old_tokens] :
           {std::pair<int32_t, int32_t>{1, 511}, {1, 4095}, {1, 32767}, {512, 0}, {512, 3584}}) {
        const std::string name = "attention/" + std::string(dtype_name(type)) + "/" + shape.name +
                                 "/rows:" + std::to_string(rows) +
                                 "/cached:" + std::to_string(old_tokens);
        benchmark::RegisterBenchmark(name.c_str(), run_attention, type, shape, rows, old_tokens)
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace spillway
