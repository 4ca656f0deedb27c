// SPDX-License-Identifier: Apache-2.0
// Measures matrix products of every stored type, from one token (decode) over small batches to 512
// (prefill). linear/... uses the layout that the device packs weights into; rows/... uses the
// file's, if that is different. Names can be filtered:
//   linear_bench --threads 2 --benchmark_filter='linear/Q4_0/tinyllama.*/tokens:(1|512)/'
// For few tokens, "of_read" is the median rate as a share of the best read loop's median on the
// same threads.
// --cold_mb M: the copies of a matrix take this much memory (256), more than the caches hold.
// --variant NAME:key=value,... (may be repeated; shown as .../NAME) changes what is otherwise
// chosen:
//   m1, m2        where the kernels for few and for many tokens take over (device/tuning.h)
//   half          the number of tokens from which linear_half serves 16-bit rows
//   depth, panels, chunk, direct, direct_depth, cut, xahead, ahead, sweep
//                 the blocking of the bfloat16 kernels (cpu/linear/linear_bf16_args.h)
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/median.h"
#include "bench/read_bandwidth.h"
#include "cpu/cpu_device.h"
#include "cpu/linear/linear_bf16.h"
#include "cpu/linear/linear_half.h"
#include "device/tuning.h"
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
constexpr int64_t kFewTokens = 8;
int64_t cold_bytes = int64_t{256} << 20;

Activations as_matrix(const Buffer& buffer, int64_t rows, int64_t cols) {
  return {DType::kF32, rows, cols, cols, buffer.data()};
}

// Copies of a matrix that are used in rotation, so that its weights come from memory each time.
struct ColdMatrix {
  ColdMatrix(CpuDevice& device, DType type_, WeightLayout layout_, Shape shape_)
      : type(type_),
        layout(layout_),
        shape(shape_),
        bytes(row_bytes(type_, shape_.n * shape_.k)),
        copies((cold_bytes + bytes - 1) / bytes),
        buffer(device.allocate(static_cast<size_t>(bytes * copies), MemoryTag::kWeights)) {
    fill_random(type, buffer.data(), shape.n * shape.k, 1, 0.02F);
    if (layout == WeightLayout::kGroups16) {
      pack_groups(type, buffer.data(), buffer.data(), shape.n / kGroupRows, shape.k);
    }
    for (int64_t copy = 1; copy < copies; ++copy) {
      std::memcpy(buffer.data() + copy * bytes, buffer.data(), static_cast<size_t>(bytes));
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

// Changes to the choices that the device makes.
struct Variant {
  std::string name;  // empty: no change
  InflectionPoints points = {.m1 = 0, .m2 = 0};
  int64_t half_from = 0;
  Bf16Kernels bf16 = {};
};

// Parses "NAME:key=value,..."; returns nullopt for any other form.
std::optional<Variant> try_parse_variant(const std::string& text) {
  const size_t colon = text.find(':');
  Variant variant{.name = text.substr(0, colon)};
  if (const Bf16Kernels* best = try_bf16_kernels()) variant.bf16 = *best;
  Bf16Kernels& bf16 = variant.bf16;
  for (size_t at = colon; at != std::string::npos; at = text.find(',', at + 1)) {
    const std::string word = text.substr(at + 1, text.find(',', at + 1) - at - 1);
    const size_t equals = word.find('=');
    if (word.empty()) continue;
    if (equals == std::string::npos) return std::nullopt;
    const std::string key = word.substr(0, equals);
    const int64_t value = std::atoll(word.c_str() + equals + 1);
    if (key == "m1") {
      variant.points.m1 = static_cast<int32_t>(value);
    } else if (key == "m2") {
      variant.points.m2 = static_cast<int32_t>(value);
    } else if (key == "half") {
      variant.half_from = value;
    } else if (key == "depth") {
      bf16.max_depth = value;
    } else if (key == "panels") {
      bf16.panels = value;
    } else if (key == "chunk") {
      bf16.chunk_tokens = value;
    } else if (key == "direct") {
      bf16.direct_tokens = value;
    } else if (key == "direct_depth") {
      bf16.direct_depth = value;
    } else if (key == "cut") {
      bf16.cut_steps = value;
    } else if (key == "xahead") {
      bf16.x_ahead_steps = value;
    } else if (key == "ahead") {
      bf16.asks_ahead = value != 0;
    } else if (key == "sweep") {
      bf16.sweep_tokens = value;
    } else {
      return std::nullopt;
    }
  }
  return variant;
}

void run_linear(benchmark::State& state, CpuDevice& device, DType type, WeightLayout layout,
                Shape shape, int64_t tokens, const Variant& variant) {
  // The matrix is kept for the next number of tokens.
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
  use_bf16_kernels(variant.bf16.multiply != nullptr ? &variant.bf16 : nullptr);
  cpu::use_half_kernels_from(variant.half_from);
  InflectionPoints points = variant.points;
  if (points.m1 == 0) points.m1 = InflectionPoints{}.m1;
  const TuningTable table(points);
  device.ops().set_tuning(points.m2 > 0 ? &table : nullptr);
  int64_t copy = 0;
  std::vector<double> seconds;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    device.ops().linear(matrix->view(copy++), {}, x, out, LinearMode::kStore);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  device.ops().set_tuning(nullptr);
  cpu::use_half_kernels_from(0);
  use_bf16_kernels(nullptr);
  const auto rate = [](double value) {
    return benchmark::Counter(value / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["GB/s"] = rate(static_cast<double>(matrix->bytes));
  if (tokens <= kFewTokens) {
    static const double read = best_read_bytes_per_s(device.info().threads);
    state.counters["of_read"] = static_cast<double>(matrix->bytes) / median(seconds) / read;
  }
  state.counters["GFLOP/s"] = rate(2.0 * static_cast<double>(tokens * shape.n * shape.k));
}

void register_all(CpuDevice& device, const std::vector<Variant>& variants) {
  for (const DType type : kAllDTypes) {
    for (const Shape& shape : kShapes) {
      const WeightLayout preferred = device.preferred_layout(type, shape.n, shape.k);
      for (const WeightLayout layout : {preferred, WeightLayout::kRows}) {
        const bool rows = layout != preferred;
        for (const int64_t tokens : {1, 2, 4, 8, 16, 32, 64, 512}) {
          const std::string name = (rows ? "rows/" : "linear/") + std::string(dtype_name(type)) +
                                   "/" + shape.name + "/tokens:" + std::to_string(tokens);
          for (const Variant& variant : variants) {
            const std::string full = variant.name.empty() ? name : name + "/" + variant.name;
            benchmark::RegisterBenchmark(full.c_str(), run_linear, std::ref(device), type, layout,
                                         shape, tokens, variant)
                ->UseRealTime()
                ->Unit(benchmark::kMillisecond);
          }
        }
        if (preferred == WeightLayout::kRows) break;  // both layouts are the same
      }
    }
  }
}

// Takes the next "name value" off the command line; returns nullopt if it is not given.
std::optional<std::string> try_take(const char* name, int& argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) != 0) continue;
    std::string value = argv[i + 1];
    for (int j = i; j + 2 <= argc; ++j) argv[j] = argv[j + 2];  // the last one is null
    argc -= 2;
    return value;
  }
  return std::nullopt;
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  using spillway::try_take;
  const int threads = std::atoi(try_take("--threads", argc, argv).value_or("0").c_str());
  if (const auto mb = try_take("--cold_mb", argc, argv)) {
    spillway::cold_bytes = std::atoll(mb->c_str()) << 20;
  }
  std::vector<spillway::Variant> variants;
  while (const auto text = try_take("--variant", argc, argv)) {
    const auto variant = spillway::try_parse_variant(*text);
    if (!variant) {
      std::fprintf(stderr, "not a variant: %s\n", text->c_str());
      return 1;
    }
    variants.push_back(*variant);
  }
  if (variants.empty()) variants.emplace_back();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  spillway::CpuDevice device({.threads = threads});
  spillway::register_all(device, variants);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
