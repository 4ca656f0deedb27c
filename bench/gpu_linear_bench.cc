// SPDX-License-Identifier: Apache-2.0
// Linear layers of 16-bit weights on the GPU: every kind of kernel and variant on the shapes of
// Llama-2-7B and OPT-6.7B, beside the best of cuBLASLt's eight proposals for the same product (one
// product, where ours are two or three parts; without the activation of gated ones).
//
// Weights rotate over more memory than the L2 cache holds; calls follow each other in a CUDA graph,
// as in a decode step. Every figure is the best of several replays.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/gpu_ceilings.h"
#include "cuda/cuda_error.h"
#include "cuda/linear.h"
#include "cuda/linear_library.h"

namespace spillway::bench {
namespace {

using namespace spillway::cuda;

struct Shape {
  std::string name;
  std::vector<int64_t> n;
  int64_t k;
  Epilogue epilogue;
};

const std::vector<Shape> kShapes = {
    {"llama qkv 3x4096", {4096, 4096, 4096}, 4096, Epilogue::kStore},
    {"llama/opt o", {4096}, 4096, Epilogue::kAccumulate},
    {"llama gate+up", {11008, 11008}, 4096, Epilogue::kGated},
    {"llama up", {11008}, 4096, Epilogue::kStore},
    {"llama down", {4096}, 11008, Epilogue::kAccumulate},
    {"opt fc1", {16384}, 4096, Epilogue::kActivate},
    {"opt fc2", {4096}, 16384, Epilogue::kAccumulate},
};

struct Options {
  std::vector<int> tokens = {1, 2, 4, 8, 16, 32, 64};
  std::string only;
  std::string json;
  bool bf16 = false;
  bool all = false;
  int replays = 4;
};

struct Memory {
  std::byte* weights = nullptr;
  size_t weight_bytes = size_t{1} << 30;
  std::byte *x = nullptr, *out = nullptr;
  LinearScratch scratch;
  cudaStream_t stream = nullptr;
};

std::byte* allocate(size_t bytes) {
  void* data = nullptr;
  SPW_CUDA_CHECK(cudaMalloc(&data, bytes));
  return static_cast<std::byte*>(data);
}

Memory allocate_all(bool bf16) {
  Memory m;
  SPW_CUDA_CHECK(cudaStreamCreateWithFlags(&m.stream, cudaStreamNonBlocking));
  m.weights = allocate(m.weight_bytes);
  fill_random16(m.weights, m.weight_bytes / 2, bf16, 1, 0.02f, m.stream);
  const size_t x_bytes = size_t{64} * 16384 * 2, out_bytes = size_t{64} * 32768 * 4;
  m.x = allocate(x_bytes);
  fill_random16(m.x, x_bytes / 2, bf16, 2, 1, m.stream);
  m.out = allocate(out_bytes);
  SPW_CUDA_CHECK(cudaMemset(m.out, 0, out_bytes));
  m.scratch.bytes = std::max(flat_scratch_bytes(current_gpu().sms), size_t{48} << 20);
  m.scratch.data = allocate(m.scratch.bytes);
  SPW_CUDA_CHECK(cudaMemset(m.scratch.data, 0, m.scratch.bytes));
  SPW_CUDA_CHECK(cudaDeviceSynchronize());
  return m;
}

int64_t rows_of(const Shape& s) {
  int64_t n = 0;
  for (int64_t part : s.n) n += part;
  return n;
}

// The call with the weights of rotation `index`.
LinearCall call_of(const Shape& s, int tokens, bool bf16, const Memory& m, size_t index) {
  const DType type = bf16 ? DType::kBF16 : DType::kF16;
  const DType out_type = s.epilogue == Epilogue::kAccumulate ? DType::kF32 : type;
  LinearCall call;
  call.count = static_cast<int>(s.n.size());
  call.x = {type, tokens, s.k, s.k, m.x};
  call.epilogue = s.epilogue;
  call.activation = s.epilogue == Epilogue::kGated ? ActivationKind::kSilu : ActivationKind::kRelu;
  const int64_t n = rows_of(s);
  const size_t bytes = static_cast<size_t>(n * s.k) * 2;
  std::byte* w = m.weights + index % (m.weight_bytes / bytes) * bytes;
  int64_t column = 0;
  for (int i = 0; i < call.count; ++i) {
    const int64_t rows = s.n[static_cast<size_t>(i)];
    call.parts[i].w = {type, rows, s.k, w + column * s.k * 2};
    call.parts[i].out = {out_type, tokens, rows, n, m.out + row_bytes(out_type, column)};
    column += rows;
  }
  return call;
}

// Seconds of one of `count` calls that follow each other.
double seconds_per_call(const Memory& m, int count, int replays,
                        const std::function<void(size_t)>& call) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  SPW_CUDA_CHECK(cudaStreamBeginCapture(m.stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < count; ++i) call(static_cast<size_t>(i));
  SPW_CUDA_CHECK(cudaStreamEndCapture(m.stream, &graph));
  SPW_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin = nullptr, end = nullptr;
  SPW_CUDA_CHECK(cudaEventCreate(&begin));
  SPW_CUDA_CHECK(cudaEventCreate(&end));
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i <= replays; ++i) {  // the first warms up
    float ms = 0;
    SPW_CUDA_CHECK(cudaEventRecord(begin, m.stream));
    SPW_CUDA_CHECK(cudaGraphLaunch(executable, m.stream));
    SPW_CUDA_CHECK(cudaEventRecord(end, m.stream));
    SPW_CUDA_CHECK(cudaEventSynchronize(end));
    SPW_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) best = std::min(best, ms * 1e-3 / count);
  }
  SPW_CUDA_CHECK(cudaEventDestroy(begin));
  SPW_CUDA_CHECK(cudaEventDestroy(end));
  SPW_CUDA_CHECK(cudaGraphExecDestroy(executable));
  SPW_CUDA_CHECK(cudaGraphDestroy(graph));
  return best;
}

struct Timing {
  std::string name;
  double seconds = std::numeric_limits<double>::max();
};

void keep_faster(Timing& best, const Timing& other) {
  if (other.seconds < best.seconds) best = other;
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

int main_of(const Options& o) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    fmt::print("no GPU: nothing to measure\n");
    return 0;
  }
  const GpuShape gpu = current_gpu();
  const double hbm = hbm_read_bytes_per_s(), flops = bf16_gemm_flop_per_s();
  fmt::print("ceilings: HBM read {:.0f} GB/s, cuBLASLt bf16 8192^3 {:.0f} TFLOP/s, {} SMs\n",
             hbm * 1e-9, flops * 1e-12, gpu.sms);
  std::string why;
  const auto library = CublasLt::try_load(&why);
  if (library == nullptr) fmt::print("no cuBLASLt: {}\n", why);
  const Memory m = allocate_all(o.bf16);
  nlohmann::json rows = nlohmann::json::array();
  fmt::print("{:<18} {:>6} | {:>21} {:>21} {:>10} | {:>10} | {:>8} {:>7} | {:>7} {:>7}\n", "shape",
             "tokens", "best gemv us", "best flat us", "library", "cublas us", "ours us", "of HBM",
             "ratio", "best");
  double log_ratio = 0, log_best = 0, worst = std::numeric_limits<double>::max();
  int few = 0;
  for (const Shape& s : kShapes) {
    if (s.name.find(o.only) == std::string::npos) continue;
    for (int tokens : o.tokens) {
      const auto call = [&](size_t i) { return call_of(s, tokens, o.bf16, m, i); };
      const LinearProblem problem = problem_of(call(0));
      const double bytes = static_cast<double>(problem.n * s.k) * 2;
      const int count = std::max(24, static_cast<int>(static_cast<double>(m.weight_bytes) / bytes));
      const auto time = [&](const std::string& name, const std::function<void(size_t)>& work) {
        const Timing t{name, seconds_per_call(m, count, o.replays, work)};
        if (o.all) {
          fmt::print("    {:<18} {:>3}  {:<28} {:9.2f} us  {}\n", s.name, tokens, name,
                     t.seconds * 1e6, percent(bytes / t.seconds / hbm));
        }
        rows.push_back({{"shape", s.name},
                        {"tokens", tokens},
                        {"kernel", name},
                        {"us", t.seconds * 1e6},
                        {"of_hbm", bytes / t.seconds / hbm}});
        return t;
      };
      Timing gemv, flat, tuned, peer, ours;
      if (tokens <= 2 * kGemvTokens) {
        for (int v = 0; v < gemv_variants(); ++v) {
          if (!gemv_supports(v, problem)) continue;
          for (bool prefetch : {false, true}) {
            keep_faster(gemv, time("gemv " + gemv_variant_name(v) + (prefetch ? " +L2" : ""),
                                   [&](size_t i) {
                                     linear_gemv(call(i), {v, 1, prefetch}, m.stream);
                                   }));
          }
        }
      }
      for (int v = 0; v < flat_variants(); ++v) {
        if (!flat_supports(v, problem)) continue;
        const bool ring = flat_variant_name(v).starts_with("ring");
        if (ring && tokens < 8) continue;
        for (int splits : ring ? std::vector<int>{1, 2, 3, 4, 6, 8} : std::vector<int>{0}) {
          const std::string name =
              "flat " + flat_variant_name(v) + (ring ? fmt::format(" /{}", splits) : std::string());
          keep_faster(flat, time(name, [&](size_t i) {
                        linear_flat(call(i), {v, splits}, m.scratch, m.stream);
                      }));
        }
      }
      if (library != nullptr) {
        LibraryShape shape;
        shape.n = shape.out_stride = problem.n;
        shape.k = shape.x_stride = s.k;
        shape.tokens = tokens;
        shape.dtype = problem.dtype;
        shape.accumulate = s.epilogue == Epilogue::kAccumulate;
        shape.relu = s.epilogue == Epilogue::kActivate;
        shape.out_type = shape.accumulate ? DType::kF32 : problem.dtype;
        shape.alignment = 256;
        shape.workspace_bytes = kLibraryWorkspaceBytes;
        for (int choice = 0; choice < library->choices(shape); ++choice) {
          library->choose(shape, choice);
          keep_faster(peer, time(fmt::format("cublas #{}", choice), [&](size_t i) {
                        library->matmul(shape, call(i).parts[0].w.data, m.x, nullptr, m.out,
                                        m.scratch.data + kScratchCounterBytes, m.stream);
                      }));
        }
        std::vector<LinearCall> calls;
        for (int i = 0; i < count; ++i) calls.push_back(call(static_cast<size_t>(i)));
        tune_library(*library, calls, m.scratch, m.stream);
        tuned = time("library, tuned",
                     [&](size_t i) { linear_library(*library, call(i), m.scratch, m.stream); });
      }
      // What the product does when nothing was measured.
      switch (kernel_at(default_points(problem, library != nullptr), tokens)) {
        case LinearKernel::kGemv:
          ours = time("planned gemv",
                      [&](size_t i) { linear_gemv(call(i), plan_gemv(problem, gpu), m.stream); });
          break;
        case LinearKernel::kFlat:
          ours = time("planned flat", [&](size_t i) {
            linear_flat(call(i), plan_flat(problem, gpu), m.scratch, m.stream);
          });
          break;
        case LinearKernel::kGemm:
          ours = tuned;
          break;
      }
      Timing best = ours;
      for (const Timing& t : {gemv, flat, tuned}) keep_faster(best, t);
      const double ratio = peer.seconds / ours.seconds, best_ratio = peer.seconds / best.seconds;
      const auto us = [](const Timing& t) {
        return t.name.empty() ? std::string("-") : fmt::format("{:.2f}", t.seconds * 1e6);
      };
      const auto named = [&](const Timing& t) {
        return t.name.empty() ? std::string("-") : t.name.substr(5) + " " + us(t);
      };
      fmt::print("{:<18} {:>6} | {:>21} {:>21} {:>10} | {:>10} | {:>8} {:>7} | {:>7} {:>7}\n",
                 s.name, tokens, named(gemv), named(flat), us(tuned), us(peer), us(ours),
                 percent(bytes / ours.seconds / hbm),
                 peer.name.empty() ? "-" : fmt::format("{:.3f}", ratio),
                 peer.name.empty() ? "-" : fmt::format("{:.3f}", best_ratio));
      if (peer.name.empty()) continue;
      worst = std::min(worst, best_ratio);
      if (tokens <= 8) log_ratio += std::log(ratio), log_best += std::log(best_ratio), ++few;
    }
  }
  if (few > 0) {
    fmt::print(
        "against cuBLASLt's best, up to 8 tokens, geometric mean: as planned {:.3f}, best variant "
        "{:.3f}; worst of all with the best variant {:.3f}\n",
        std::exp(log_ratio / few), std::exp(log_best / few), worst);
  }
  if (!o.json.empty()) {
    std::ofstream(o.json) << nlohmann::json{{"hbm_read_bytes_per_s", hbm},
                                            {"bf16_gemm_flop_per_s", flops},
                                            {"type", o.bf16 ? "BF16" : "F16"},
                                            {"rows", rows}}
                                 .dump(1)
                          << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  spillway::bench::Options options;
  CLI::App app("Linear layers of 16-bit weights on the GPU, beside cuBLASLt");
  app.add_option("--tokens", options.tokens, "numbers of tokens")->delimiter(',');
  app.add_option("--only", options.only, "shapes whose name contains this");
  app.add_option("--json", options.json, "writes every measurement to this file");
  app.add_option("--replays", options.replays, "how often each is measured");
  app.add_flag("--bf16", options.bf16, "BF16 instead of F16");
  app.add_flag("--all", options.all, "prints every variant");
  CLI11_PARSE(app, argc, argv);
  return spillway::bench::main_of(options);
}
