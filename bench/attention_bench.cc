// SPDX-License-Identifier: Apache-2.0
// Measures attention over paged KV: decode at several context lengths and batch sizes, and prefill
// chunks, for every KvType. "of_read" is the median rate as a share of the best read loop's median
// on the same threads; prefill reports FLOP/s. SPILLWAY_BENCH_THREADS sets the threads.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/median.h"
#include "bench/read_bandwidth.h"
#include "cpu/cpu_device.h"
#include "device/sparse_attention.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

struct Shape {
  const char* name;
  int heads, kv_heads, head_dim;
};
constexpr Shape kShapes[] = {{"smollm2-135m", 9, 3, 64},  {"tinyllama", 32, 4, 64},
                             {"llama-3-8b", 32, 8, 128},  {"opt-1.3b", 32, 32, 64},
                             {"llama-2-7b", 32, 32, 128}, {"llama-3.2-1b", 32, 8, 64},
                             {"llama-3-70b", 64, 8, 128}};

int bench_threads() {
  const char* text = std::getenv("SPILLWAY_BENCH_THREADS");
  return text != nullptr ? std::atoi(text) : 0;
}

double read_bandwidth() {
  static const double best = best_read_bytes_per_s(bench_threads());
  return best;
}

// Runs `sequences` sequences of `rows` new tokens each, after `old_tokens` cached ones. If top_k >
// 0, attention is sparse.
void run_attention(benchmark::State& state, KvType type, Shape shape, int32_t sequences,
                   int32_t rows, int32_t old_tokens, float top_k) {
  CpuDevice device({.threads = bench_threads()});
  const int64_t blocks_each = (old_tokens + rows + kKvBlockTokens - 1) / kKvBlockTokens;
  const int64_t blocks = sequences * blocks_each, all_rows = int64_t{sequences} * rows;
  const int64_t width = int64_t{shape.kv_heads} * shape.head_dim;
  const int64_t q_width = int64_t{shape.heads} * shape.head_dim;
  KvLayerView kv{type, blocks, shape.kv_heads, shape.head_dim, nullptr, nullptr};
  const auto plane_bytes = static_cast<size_t>(blocks * kv.block_bytes());
  const auto k = device.allocate(plane_bytes, MemoryTag::kKv);
  const auto v = device.allocate(plane_bytes, MemoryTag::kKv);
  kv.k = k.data();
  kv.v = v.data();
  // All blocks are copies of one page of random rows.
  std::vector<float> page(static_cast<size_t>(kKvBlockTokens * width));
  const Activations page_rows{DType::kF32, kKvBlockTokens, width, width,
                              reinterpret_cast<std::byte*>(page.data())};
  for (std::byte* plane : {kv.k, kv.v}) {
    fill_random(DType::kF32, reinterpret_cast<std::byte*>(page.data()), kKvBlockTokens * width,
                plane == kv.k ? 1 : 2, 1);
    const std::vector<int32_t> first{0};
    const SequenceSpan span{0, kKvBlockTokens, 0, first};
    KvLayerView one = kv;
    one.k = one.v = plane;
    device.ops().kv_append(page_rows, page_rows, one, {&span, 1});
    for (int64_t b = 1; b < blocks; ++b) {
      std::copy_n(plane, kv.block_bytes(), plane + b * kv.block_bytes());
    }
  }
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);
  std::vector<SequenceSpan> spans;
  for (int32_t s = 0; s < sequences; ++s) {
    spans.push_back({s * rows,
                     rows,
                     old_tokens,
                     {table.data() + s * blocks_each, static_cast<size_t>(blocks_each)},
                     {},
                     /*generates=*/rows == 1});
  }
  const auto bytes = static_cast<size_t>(all_rows * q_width) * 4;
  const auto q = device.allocate(bytes, MemoryTag::kActivations);
  const auto out = device.allocate(bytes, MemoryTag::kActivations);
  fill_random(DType::kF32, q.data(), all_rows * q_width, 3, 1);
  const AttentionParams params{shape.heads, 1 / std::sqrt(static_cast<float>(shape.head_dim)), 0,
                               top_k};
  std::vector<double> seconds;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    device.ops().attention({DType::kF32, all_rows, q_width, q_width, q.data()}, kv, spans, params,
                           {DType::kF32, all_rows, q_width, q_width, out.data()});
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  AttentionTraffic traffic;
  traffic.add(spans, kv, params, 1);
  const size_t v_bytes = top_k > 0 ? static_cast<size_t>(traffic.v_bytes) : plane_bytes;
  const auto read = static_cast<double>(plane_bytes + v_bytes);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(plane_bytes + v_bytes));
  using benchmark::Counter;
  if (rows == 1) {
    state.counters["of_read"] = read / median(seconds) / read_bandwidth();
  }
  const double pairs = static_cast<double>(all_rows) * (old_tokens + (rows + 1) / 2.0);
  state.counters["FLOP/s"] =
      Counter(4 * pairs * static_cast<double>(q_width), Counter::kIsIterationInvariantRate);
}

const bool kRegistered = [] {
  const auto add = [](KvType type, const Shape& shape, int32_t sequences, int32_t rows,
                      int32_t old_tokens, float top_k = 0) {
    const std::string name = "attention/" + std::string(kv_type_name(type)) + "/" + shape.name +
                             "/batch:" + std::to_string(sequences) +
                             "/rows:" + std::to_string(rows) +
                             "/cached:" + std::to_string(old_tokens) +
                             (top_k > 0 ? "/topk:" + std::to_string(top_k).substr(0, 4) : "");
    benchmark::RegisterBenchmark(name.c_str(), run_attention, type, shape, sequences, rows,
                                 old_tokens, top_k)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  for (const KvType type : kAllKvTypes) {
    for (const Shape& shape : kShapes) {
      for (const int32_t keys : {1024, 8192, 32768}) add(type, shape, 1, 1, keys - 1);
      add(type, shape, 1, 1, 8191, 0.1F);
      for (const int32_t batch : {8, 32}) add(type, shape, batch, 1, 1023);
      // This is more KV than a server's caches hold.
      if (shape.head_dim == 128) add(type, shape, 32, 1, 8191);
      for (const int32_t old_tokens : {0, 3584}) add(type, shape, 1, 512, old_tokens);
    }
  }
  return true;
}();

}  // namespace
}  // namespace spillway
