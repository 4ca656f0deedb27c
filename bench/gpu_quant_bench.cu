// SPDX-License-Identifier: Apache-2.0
// Measures linear layers over quantized weights on the GPU, in the shapes of Llama-2-7B, with cold
// caches: calls rotate over at least 512 MB of weights in one CUDA graph, one after another as in a
// decode step. Prints time, GB/s and the share of the read bandwidth that the process measures
// first.
//
//   gpu_quant_bench [--types q4_0,q4_k] [--tokens 1,8] [--shapes qkv,o,gate_up,down,head]
//                   [--sweep | --sweep-all] [--step | --step-sweep] [--dequantize] [--json FILE]
//                   [--kernel 1|2|3] [--stages S] [--blocks B] [--resident R] [--l2 SETS]
//                   [--next N] [--overlap]
//
// --sweep also tries every launch shape and prints the best one (--sweep-all: all of them). --step
// times all linear layers of a decode step (--step-sweep: with many launch shapes). --dequantize
// expands matrices to F16. --kernel (1: slices, 2: few tokens, 3: wgmma) and the options after it
// set fields of QuantLinearTuning. --overlap lets kernels start before the previous one has ended.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/gpu_ceilings.h"
#include "cuda/cuda_error.h"
#include "cuda/dequantize/dequantize.h"
#include "cuda/linear/linear_quant.h"
#include "cuda/overlapping_launches.h"
#include "tensor/packed_layout.h"
#include "tensor/random_fill.h"

namespace spillway::cuda {
namespace {

constexpr int64_t kColdBytes = int64_t{512} << 20;

class Timer {
 public:
  Timer() {
    SPW_CUDA_CHECK(cudaEventCreate(&begin_));
    SPW_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  // Returns the seconds of fn's work in the stream.
  template <class Fn>
  double operator()(cudaStream_t stream, Fn&& fn) {
    SPW_CUDA_CHECK(cudaEventRecord(begin_, stream));
    fn();
    SPW_CUDA_CHECK(cudaEventRecord(end_, stream));
    SPW_CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0;
    SPW_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return ms * 1e-3;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

struct Shape {
  std::string name;
  std::vector<int64_t> n;
  int64_t k;
  Epilogue epilogue;
  DType out;
};
const std::vector<Shape> kShapes = {
    {"qkv", {4096, 4096, 4096}, 4096, Epilogue::kStore, DType::kF16},
    {"o", {4096}, 4096, Epilogue::kAccumulate, DType::kF32},
    {"gate_up", {11008, 11008}, 4096, Epilogue::kGated, DType::kF16},
    {"down", {4096}, 11008, Epilogue::kAccumulate, DType::kF32},
    {"head", {32000}, 4096, Epilogue::kStore, DType::kF32},
};

int64_t shape_bytes(const Shape& shape, DType type) {
  int64_t rows = 0;
  for (const int64_t n : shape.n) rows += n;
  return rows * row_bytes(type, shape.k);
}

struct Bench {
  cudaStream_t stream = nullptr;
  Timer timer;
  std::byte* weights = nullptr;
  int64_t weight_bytes = 0;
  std::byte* x = nullptr;
  std::byte* out = nullptr;
  double ceiling = 0;  // bytes per second
  std::FILE* json = nullptr;
  bool first_line = true;
  QuantLinearTuning tuning;  // for what is not swept
  bool sweep_all = false;    // print all that is tried

  void record(const std::string& fields) {
    if (json == nullptr) return;
    fmt::print(json, "{}\n  {{{}}}", first_line ? "[" : ",", fields);
    first_line = false;
  }

  // Fills the buffer with packed random weights. They may lie anywhere: for any K, a group of rows
  // is as good as any other of its type.
  void fill(DType type) {
    constexpr int64_t kCols = 4096, kGroups = 64;
    const int64_t bytes = kGroups * kGroupRows * row_bytes(type, kCols);
    std::vector<std::byte> host(static_cast<size_t>(bytes));
    fill_random(type, host.data(), kGroups * kGroupRows * kCols, 1, 0.02F);
    if (can_pack(type)) pack_groups(type, host.data(), host.data(), kGroups, kCols);
    for (int64_t at = 0; at < weight_bytes; at += bytes) {
      const auto count = static_cast<size_t>(std::min(bytes, weight_bytes - at));
      SPW_CUDA_CHECK(at == 0 ? cudaMemcpy(weights, host.data(), count, cudaMemcpyHostToDevice)
                             : cudaMemcpy(weights + at, weights, count, cudaMemcpyDeviceToDevice));
    }
  }

  LinearCall call(const Shape& shape, DType type, int64_t tokens, const std::byte* at) const {
    LinearCall call;
    call.count = static_cast<int>(shape.n.size());
    call.x = {DType::kF16, tokens, shape.k, shape.k, x};
    call.epilogue = shape.epilogue;
    int64_t total = 0;
    for (const int64_t n : shape.n) total += n;
    int64_t column = 0;
    for (size_t p = 0; p < shape.n.size(); ++p) {
      LinearPart& part = call.parts[p];
      part.w = {type, shape.n[p], shape.k, at, WeightLayout::kGroups16};
      part.out = {shape.out, tokens, shape.n[p], total, out + row_bytes(shape.out, column)};
      at += part.w.bytes();
      column += shape.n[p];
    }
    return call;
  }

  // Returns the seconds of the work that `enqueue` submits, run as a graph; the best of some runs.
  double time_graph(const std::function<void()>& enqueue) {
    enqueue();  // kernels are loaded at their first use
    SPW_CUDA_CHECK(cudaStreamSynchronize(stream));
    SPW_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    SPW_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    SPW_CUDA_CHECK(cudaGraphInstantiate(&ready, graph, 0));
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      const double s = timer(stream, [&] { SPW_CUDA_CHECK(cudaGraphLaunch(ready, stream)); });
      if (i > 0) best = std::min(best, s);
    }
    SPW_CUDA_CHECK(cudaGraphExecDestroy(ready));
    SPW_CUDA_CHECK(cudaGraphDestroy(graph));
    return best;
  }

  // Returns the seconds of one call with cold caches.
  double time_call(const Shape& shape, DType type, int64_t tokens,
                   const QuantLinearTuning& tuning) {
    const int64_t bytes = shape_bytes(shape, type);
    const auto copies = static_cast<int>(
        std::min(weight_bytes / bytes, std::max<int64_t>(20, (kColdBytes + bytes - 1) / bytes)));
    return time_graph([&] {
             for (int i = 0; i < copies; ++i) {
               quant_linear(call(shape, type, tokens, weights + i * bytes), stream, tuning);
             }
           }) /
           copies;
  }

  void linear_case(const Shape& shape, DType type, int64_t tokens, bool sweep) {
    const int64_t bytes = shape_bytes(shape, type);
    const double seconds = time_call(shape, type, tokens, tuning);
    const double rate = static_cast<double>(bytes) / seconds;
    std::string best_text;
    double best = seconds;
    if (sweep) {
      QuantLinearTuning winner;
      const auto attempt = [&](const QuantLinearTuning& one) {
        const double s = time_call(shape, type, tokens, one);
        if (sweep_all) {
          fmt::print("    kernel {} cluster {} stages {} blocks {} l2 {}: {:.2f} us\n",
                     static_cast<int>(one.kernel), one.cluster, one.stages, one.blocks_per_sm,
                     one.l2_sets, s * 1e6);
        }
        if (s < best) {
          best = s;
          winner = one;
        }
      };
      for (const int cluster : {1, 2, 4, 8}) {
        for (const int stages : {2, 3, 4}) {
          for (const int per_sm : {1, 2}) {
            attempt({.kernel = QuantKernel::kSlices,
                     .cluster = cluster,
                     .stages = stages,
                     .blocks_per_sm = per_sm});
          }
        }
      }
      for (const int stages : {1, 2, 3, 4}) {
        for (const int per_sm : {1, 2, 3, 4}) {
          for (const int l2_sets : {0, 1, 2}) {
            if (tokens > kQuantFewTokens) continue;
            attempt({.kernel = QuantKernel::kFew,
                     .stages = stages,
                     .blocks_per_sm = per_sm,
                     .l2_sets = l2_sets});
          }
        }
      }
      best_text = fmt::format("  best {:6.2f} us (kernel {} cluster {} stages {} blocks {} l2 {})",
                              best * 1e6, static_cast<int>(winner.kernel), winner.cluster,
                              winner.stages, winner.blocks_per_sm, winner.l2_sets);
    }
    fmt::print("{:5} {:8} tokens {:3}  {:8.2f} us  {:7.0f} GB/s  {:5.1f}% of reads{}\n",
               dtype_name(type), shape.name, tokens, seconds * 1e6, rate * 1e-9,
               100 * rate / ceiling, best_text);
    std::fflush(stdout);
    record(
        fmt::format("\"type\": \"{}\", \"shape\": \"{}\", \"tokens\": {}, \"us\": {:.3f}, "
                    "\"gb_per_s\": {:.1f}, \"share\": {:.4f}, \"best_us\": {:.3f}",
                    dtype_name(type), shape.name, tokens, seconds * 1e6, rate * 1e-9,
                    rate / ceiling, best * 1e6));
  }

  // Returns the seconds and `bytes` of all linear layers of a decode step: 32 layers and the head.
  double time_step(DType type, int64_t tokens, const QuantLinearTuning& with, int64_t& bytes) {
    return time_graph([&] {
      bytes = 0;
      for (int layer = 0; layer < 32; ++layer) {
        for (size_t s = 0; s < 4; ++s) {
          quant_linear(call(kShapes[s], type, tokens, weights + bytes), stream, with);
          bytes += shape_bytes(kShapes[s], type);
        }
      }
      quant_linear(call(kShapes[4], type, tokens, weights + bytes), stream, with);
      bytes += shape_bytes(kShapes[4], type);
    });
  }

  void step_case(DType type, int64_t tokens, bool sweep) {
    int64_t bytes = 0;
    const double seconds = time_step(type, tokens, tuning, bytes);
    const double rate = static_cast<double>(bytes) / seconds;
    fmt::print("{:5} step     tokens {:3}  {:8.2f} us  {:7.0f} GB/s  {:5.1f}% of reads\n",
               dtype_name(type), tokens, seconds * 1e6, rate * 1e-9, 100 * rate / ceiling);
    std::fflush(stdout);
    record(
        fmt::format("\"type\": \"{}\", \"shape\": \"step\", \"tokens\": {}, \"us\": {:.3f}, "
                    "\"gb_per_s\": {:.1f}, \"share\": {:.4f}",
                    dtype_name(type), tokens, seconds * 1e6, rate * 1e-9, rate / ceiling));
    if (!sweep) return;
    const auto attempt = [&](const QuantLinearTuning& one) {
      const double s = time_step(type, tokens, one, bytes);
      fmt::print(
          "    kernel {} cluster {} stages {} blocks {} resident {} next {} l2 {}: {:.2f} us\n",
          static_cast<int>(one.kernel), one.cluster, one.stages, one.blocks_per_sm, one.resident,
          one.next_start, one.l2_sets, s * 1e6);
      std::fflush(stdout);
    };
    for (const int cluster : {0, 1, 2, 4, 8}) {
      for (const int blocks : {0, 1, 2}) {
        attempt({.kernel = QuantKernel::kSlices, .cluster = cluster, .blocks_per_sm = blocks});
      }
    }
    if (tokens > kQuantFewTokens) return;
    for (const int next_start : {1, 2, 3}) {
      for (const int blocks : {0, 1, 2, 3}) {
        for (const int resident : {3, 4}) {
          for (const int l2_sets : {0, 1}) {
            attempt({.kernel = QuantKernel::kFew,
                     .blocks_per_sm = blocks,
                     .resident = resident,
                     .next_start = next_start,
                     .l2_sets = l2_sets});
          }
        }
      }
    }
    for (const int stages : {1, 2, 3, 4}) attempt({.stages = stages, .l2_sets = 1});
  }

  void dequantize_case(DType type) {
    constexpr int64_t kRows = 11008, kCols = 4096;
    const int64_t stored = kRows * row_bytes(type, kCols), plain = kRows * kCols * 2;
    const auto copies = static_cast<int>(std::min<int64_t>(weight_bytes / stored, 20));
    const double seconds =
        time_graph([&] {
          for (int i = 0; i < copies; ++i) {
            const WeightView w{type, kRows, kCols, weights + i * stored, WeightLayout::kGroups16};
            dequantize_rows(w, 0, {DType::kF16, kRows, kCols, kCols, out}, stream);
          }
        }) /
        copies;
    const double rate = static_cast<double>(stored + plain) / seconds;
    fmt::print("{:5} to F16 [11008, 4096]  {:8.2f} us  {:7.0f} GB/s read and written  {:5.1f}%\n",
               dtype_name(type), seconds * 1e6, rate * 1e-9, 100 * rate / ceiling);
    record(
        fmt::format("\"type\": \"{}\", \"shape\": \"dequantize\", \"us\": {:.3f}, "
                    "\"gb_per_s\": {:.1f}",
                    dtype_name(type), seconds * 1e6, rate * 1e-9));
  }

  void measure_ceiling() {
    ceiling = bench::hbm_read_bytes_per_s();
    fmt::print("HBM reads: {:.0f} GB/s\n", ceiling * 1e-9);
    record(fmt::format("\"ceiling_gb_per_s\": {:.1f}", ceiling * 1e-9));
  }
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    out.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

int run(int argc, char** argv) {
  std::vector<std::string> types = split("q4_0,g4,q4_k,q4_1,q6_k,q8_0"),
                           tokens = split("1,2,4,8,16,32,64"),
                           shapes = split("qkv,o,gate_up,down,head");
  bool sweep = false, step = false, step_sweep = false, dequantize = false, overlap = false;
  Bench bench;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const bool has_value = i + 1 < argc;
    if (option == "--types" && has_value) {
      types = split(argv[++i]);
    } else if (option == "--tokens" && has_value) {
      tokens = split(argv[++i]);
    } else if (option == "--shapes" && has_value) {
      shapes = split(argv[++i]);
    } else if (option == "--json" && has_value) {
      bench.json = std::fopen(argv[++i], "w");
      SPW_CHECK(bench.json != nullptr, kIo, "cannot write {}", argv[i]);
    } else if (option == "--sweep" || option == "--sweep-all") {
      sweep = true;
      bench.sweep_all = option == "--sweep-all";
    } else if (option == "--kernel" && has_value) {
      bench.tuning.kernel = static_cast<QuantKernel>(std::atoi(argv[++i]));
    } else if (option == "--stages" && has_value) {
      bench.tuning.stages = std::atoi(argv[++i]);
    } else if (option == "--blocks" && has_value) {
      bench.tuning.blocks_per_sm = std::atoi(argv[++i]);
    } else if (option == "--resident" && has_value) {
      bench.tuning.resident = std::atoi(argv[++i]);
    } else if (option == "--next" && has_value) {
      bench.tuning.next_start = std::atoi(argv[++i]);
    } else if (option == "--l2" && has_value) {
      bench.tuning.l2_sets = std::atoi(argv[++i]);
    } else if (option == "--step" || option == "--step-sweep") {
      step = true;
      step_sweep = option == "--step-sweep";
    } else if (option == "--overlap") {
      overlap = true;
    } else if (option == "--dequantize") {
      dequantize = true;
    } else {
      fail(ErrorCode::kInvalidArgument, "unknown option {}", option);
    }
  }
  const OverlappingLaunches overlapping(overlap);
  // The buffer holds a whole model of the largest requested type.
  int64_t params = 0;
  for (size_t s = 0; s < kShapes.size(); ++s) {
    int64_t rows = 0;
    for (const int64_t n : kShapes[s].n) rows += n;
    params += rows * kShapes[s].k * (s < 4 ? 32 : 1);
  }
  for (const std::string& name : types) {
    const auto type = try_dtype_from_name(name);
    SPW_CHECK(type && can_pack(*type), kInvalidArgument, "no packed type {}", name);
    bench.weight_bytes = std::max(bench.weight_bytes, row_bytes(*type, params));
  }
  SPW_CUDA_CHECK(cudaStreamCreateWithFlags(&bench.stream, cudaStreamNonBlocking));
  SPW_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&bench.weights), bench.weight_bytes));
  constexpr size_t kXBytes = size_t{64} * 11008 * 2, kOutBytes = size_t{11008} * 4096 * 2;
  SPW_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&bench.x), kXBytes));
  SPW_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&bench.out), kOutBytes));
  SPW_CUDA_CHECK(cudaMemset(bench.out, 0, kOutBytes));
  std::vector<std::byte> x(kXBytes);
  fill_random(DType::kF16, x.data(), kXBytes / 2, 7, 1.0F);
  SPW_CUDA_CHECK(cudaMemcpy(bench.x, x.data(), kXBytes, cudaMemcpyHostToDevice));
  SPW_CUDA_CHECK(cudaMemset(bench.weights, 0x5a, bench.weight_bytes));
  bench.measure_ceiling();
  for (const std::string& name : types) {
    const DType type = *try_dtype_from_name(name);
    bench.fill(type);
    if (dequantize) bench.dequantize_case(type);
    for (const std::string& count : tokens) {
      if (step) bench.step_case(type, std::atoi(count.c_str()), step_sweep);
      for (const Shape& shape : kShapes) {
        if (std::find(shapes.begin(), shapes.end(), shape.name) != shapes.end()) {
          bench.linear_case(shape, type, std::atoi(count.c_str()), sweep);
        }
      }
    }
  }
  if (bench.json != nullptr) {
    fmt::print(bench.json, "\n]\n");
    std::fclose(bench.json);
  }
  return 0;
}

}  // namespace
}  // namespace spillway::cuda

int main(int argc, char** argv) {
  try {
    return spillway::cuda::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_quant_bench: {}\n", error.what());
    return 1;
  }
}
