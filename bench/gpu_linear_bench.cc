// SPDX-License-Identifier: Apache-2.0
// Measures linear layers of 16-bit weights on the GPU: every kind of kernel and variant on the
// shapes of Llama-2-7B and OPT-6.7B, compared with the best of cuBLASLt's eight proposals for the
// same product (as one product where ours has two or three parts, and without the activation of
// gated layers).
//
// Weights rotate over more memory than the L2 cache holds, and calls follow each other in a CUDA
// graph, as in a decode step. Every figure is the best of several replays. There are two ways to
// launch:
//
//   alone     a call begins when the one before it has ended, as a kernel is measured by itself
//   in steps  as steps of up to kOverlapTokens tokens launch them (OverlappingLaunches): a kernel
//             loads weights while the one before it finishes; every call still waits for the one
//             before it, and reads and computes the same
//
// cuBLASLt's kernels cannot overlap like this, so both ways are compared with the same figure of
// cuBLASLt. The first comparison is fair to kernels; the second shows what a step gains from
// kernels of our own.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/gpu_ceilings.h"
#include "cuda/cuda_error.h"
#include "cuda/linear/linear.h"
#include "cuda/linear/linear_library.h"
#include "cuda/overlapping_launches.h"

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

// Returns the call with copy `index` of the weights.
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

// Returns the seconds of one of `count` consecutive calls.
double seconds_per_call(const Memory& m, int count, int replays, bool overlapping,
                        const std::function<void(size_t)>& call) {
  const OverlappingLaunches overlap(overlapping);
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
  for (int i = 0; i <= replays; ++i) {  // the first replay is a warm-up
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

  bool empty() const { return name.empty(); }
  std::string us() const { return empty() ? "-" : fmt::format("{:.2f}", seconds * 1e6); }
  std::string named() const { return empty() ? "-" : name + " " + us(); }
};

void keep_faster(Timing& best, const Timing& other) {
  if (other.seconds < best.seconds) best = other;
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

// The timings of our kernels for one of the two ways to launch.
struct Ours {
  Timing gemv, flat;  // the fastest of their variants
  Timing library;     // cuBLASLt, called as the product calls it
  Timing planned;     // what the product chooses if nothing was measured
  Timing best() const {
    Timing best = planned;
    for (const Timing& t : {gemv, flat, library}) keep_faster(best, t);
    return best;
  }
};

struct Context {
  Options options;
  GpuShape gpu;
  Memory memory;
  std::unique_ptr<CublasLt> library;  // null if the library is missing
  bool overlap = false;               // whether this GPU supports overlapping launches
  double hbm = 0;
  nlohmann::json rows = nlohmann::json::array();
};

// Measures one shape with one number of tokens.
class Case {
 public:
  Case(Context& context, const Shape& shape, int tokens)
      : c_(context), shape_(shape), tokens_(tokens), problem_(problem_of(call(0))) {
    count_ = std::max(24, static_cast<int>(static_cast<double>(c_.memory.weight_bytes) / bytes()));
  }

  double bytes() const { return static_cast<double>(problem_.n * shape_.k) * 2; }
  bool overlaps_in_steps() const { return c_.overlap && tokens_ <= kOverlapTokens; }

  // Returns the fastest of the library's proposals.
  Timing measure_peer() {
    Timing best;
    if (c_.library == nullptr) return best;
    LibraryShape shape;
    shape.n = shape.out_stride = problem_.n;
    shape.k = shape.x_stride = shape_.k;
    shape.tokens = tokens_;
    shape.dtype = problem_.dtype;
    shape.accumulate = shape_.epilogue == Epilogue::kAccumulate;
    shape.relu = shape_.epilogue == Epilogue::kActivate;
    shape.out_type = shape.accumulate ? DType::kF32 : problem_.dtype;
    shape.alignment = 256;
    shape.workspace_bytes = kLibraryWorkspaceBytes;
    for (int choice = 0; choice < c_.library->choices(shape); ++choice) {
      c_.library->choose(shape, choice);
      keep_faster(best, time(fmt::format("cublas #{}", choice), false, [&](size_t i) {
                    c_.library->matmul(shape, call(i).parts[0].w.data, c_.memory.x, nullptr,
                                       c_.memory.out, c_.memory.scratch.data + kScratchCounterBytes,
                                       c_.memory.stream);
                  }));
    }
    return best;
  }

  Ours measure_ours(bool overlapping) {
    Ours ours;
    ours.gemv = best_gemv(overlapping);
    ours.flat = best_flat(overlapping);
    if (c_.library != nullptr && !overlapping) {
      std::vector<LinearCall> calls;
      for (int i = 0; i < count_; ++i) calls.push_back(call(static_cast<size_t>(i)));
      tune_library(*c_.library, calls, c_.memory.scratch, c_.memory.stream);
      ours.library = time("library, tuned", false, [&](size_t i) {
        linear_library(*c_.library, call(i), c_.memory.scratch, c_.memory.stream);
      });
    }
    ours.planned = planned(overlapping, ours.library);
    return ours;
  }

 private:
  LinearCall call(size_t i) const {
    return call_of(shape_, tokens_, c_.options.bf16, c_.memory, i);
  }

  Timing time(const std::string& name, bool overlapping, const std::function<void(size_t)>& work) {
    const Timing t{name,
                   seconds_per_call(c_.memory, count_, c_.options.replays, overlapping, work)};
    const double of_hbm = bytes() / t.seconds / c_.hbm;
    if (c_.options.all) {
      fmt::print("    {:<18} {:>3}  {:<28} {:<9} {:9.2f} us  {}\n", shape_.name, tokens_, name,
                 overlapping ? "in steps" : "alone", t.seconds * 1e6, percent(of_hbm));
    }
    c_.rows.push_back({{"shape", shape_.name},
                       {"tokens", tokens_},
                       {"kernel", name},
                       {"launches", overlapping ? "in steps" : "alone"},
                       {"us", t.seconds * 1e6},
                       {"of_hbm", of_hbm}});
    return t;
  }

  Timing best_gemv(bool overlapping) {
    Timing best;
    if (tokens_ > 2 * kGemvTokens) return best;
    for (int v = 0; v < gemv_variants(); ++v) {
      if (!gemv_supports(v, problem_)) continue;
      for (bool prefetch : {false, true}) {
        keep_faster(best, time("gemv " + gemv_variant_name(v) + (prefetch ? " +L2" : ""),
                               overlapping, [&](size_t i) {
                                 linear_gemv(call(i), {v, 1, prefetch}, c_.memory.stream);
                               }));
      }
    }
    return best;
  }

  Timing best_flat(bool overlapping) {
    Timing best;
    for (int v = 0; v < flat_variants(); ++v) {
      if (!flat_supports(v, problem_)) continue;
      const bool ring = flat_variant_name(v).starts_with("ring");
      if (ring && tokens_ < 8) continue;
      for (int splits : ring ? std::vector<int>{1, 2, 3, 4, 6, 8} : std::vector<int>{0}) {
        const std::string name =
            "flat " + flat_variant_name(v) + (ring ? fmt::format(" /{}", splits) : std::string());
        keep_faster(best, time(name, overlapping, [&](size_t i) {
                      linear_flat(call(i), {v, splits}, c_.memory.scratch, c_.memory.stream);
                    }));
      }
    }
    return best;
  }

  // Chooses like CudaOps::multiply_plain().
  Timing planned(bool overlapping, const Timing& library) {
    const LinearKernel kernel = kernel_at(default_points(problem_, c_.library != nullptr), tokens_);
    if (kernel == LinearKernel::kGemv) {
      const LinearVariant plan = plan_gemv(problem_, c_.gpu);
      return time(
          "planned gemv " + gemv_variant_name(plan.index) + (plan.prefetch_l2 ? " +L2" : ""),
          overlapping, [&](size_t i) { linear_gemv(call(i), plan, c_.memory.stream); });
    }
    if (kernel == LinearKernel::kGemm && !overlapping && c_.library != nullptr) return library;
    const LinearVariant plan =
        overlapping ? plan_overlapping(problem_, c_.gpu) : plan_flat(problem_, c_.gpu);
    return time("planned flat " + flat_variant_name(plan.index), overlapping,
                [&](size_t i) { linear_flat(call(i), plan, c_.memory.scratch, c_.memory.stream); });
  }

  Context& c_;
  const Shape& shape_;
  int tokens_;
  LinearProblem problem_;
  int count_ = 0;
};

// Ratios to the library over all cases, for one way to launch.
struct Ratios {
  double log_planned = 0, log_best = 0;
  int few = 0;
  double worst = std::numeric_limits<double>::max(), worst_best = worst;
  std::string worst_case;

  void add(const std::string& name, int tokens, double planned, double best) {
    if (planned < worst) worst = planned, worst_case = fmt::format("{}, {} tokens", name, tokens);
    worst_best = std::min(worst_best, best);
    if (tokens > 8) return;
    log_planned += std::log(planned), log_best += std::log(best), ++few;
  }
  double mean_planned() const { return few > 0 ? std::exp(log_planned / few) : 0; }
  double mean_best() const { return few > 0 ? std::exp(log_best / few) : 0; }
  nlohmann::json json() const {
    return {{"mean_to_8_tokens", mean_planned()},
            {"mean_to_8_tokens_best_variant", mean_best()},
            {"worst", worst},
            {"worst_case", worst_case},
            {"worst_best_variant", worst_best}};
  }
  void print(const std::string& way) const {
    fmt::print(
        "{}, against cuBLASLt's best: up to 8 tokens, geometric mean: as planned {:.3f}, best "
        "variant {:.3f}; worst of all as planned {:.3f} ({}), with the best variant {:.3f}\n",
        way, mean_planned(), mean_best(), worst, worst_case, worst_best);
  }
};

nlohmann::json json_of(const Ours& ours, const Timing& peer) {
  nlohmann::json json;
  const auto put = [&](const std::string& name, const Timing& t) {
    if (t.empty()) return;
    json[name] = {{"kernel", t.name}, {"us", t.seconds * 1e6}};
    if (!peer.empty()) json[name]["ratio"] = peer.seconds / t.seconds;
  };
  put("gemv", ours.gemv);
  put("flat", ours.flat);
  put("library", ours.library);
  put("planned", ours.planned);
  put("best", ours.best());
  return json;
}

int main_of(const Options& o) {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    fmt::print("no GPU: nothing to measure\n");
    return 0;
  }
  Context c;
  c.options = o;
  c.gpu = current_gpu();
  c.hbm = hbm_read_bytes_per_s();
  const double flops = bf16_gemm_flop_per_s();
  fmt::print("ceilings: HBM read {:.0f} GB/s, cuBLASLt bf16 8192^3 {:.0f} TFLOP/s, {} SMs\n",
             c.hbm * 1e-9, flops * 1e-12, c.gpu.sms);
  std::string why;
  c.library = CublasLt::try_load(&why);
  if (c.library == nullptr) fmt::print("no cuBLASLt: {}\n", why);
  {
    const OverlappingLaunches overlap(true);
    c.overlap = overlapping_launches();
  }
  if (!c.overlap) fmt::print("launches do not overlap here: steps launch as alone\n");
  c.memory = allocate_all(o.bf16);

  fmt::print("{:<18} {:>6} {:<8} | {:>26} {:>24} {:>8} | {:>9} | {:>8} {:>6} | {:>6} {:>6}  {}\n",
             "shape", "tokens", "launches", "best gemv us", "best flat us", "library", "cublas us",
             "ours us", "of HBM", "ratio", "best", "best variant");
  nlohmann::json cases = nlohmann::json::array();
  Ratios alone_ratios, step_ratios;
  for (const Shape& s : kShapes) {
    if (s.name.find(o.only) == std::string::npos) continue;
    for (int tokens : o.tokens) {
      Case one(c, s, tokens);
      const Timing peer = one.measure_peer();
      const auto show = [&](const std::string& way, const Ours& ours, Ratios& ratios) {
        const Timing best = ours.best();
        const double ratio = peer.seconds / ours.planned.seconds;
        const double best_ratio = peer.seconds / best.seconds;
        fmt::print(
            "{:<18} {:>6} {:<8} | {:>26} {:>24} {:>8} | {:>9} | {:>8} {:>6} | {:>6} {:>6}  {}\n",
            s.name, tokens, way, ours.gemv.named(), ours.flat.named(), ours.library.us(), peer.us(),
            ours.planned.us(), percent(one.bytes() / ours.planned.seconds / c.hbm),
            peer.empty() ? "-" : fmt::format("{:.3f}", ratio),
            peer.empty() ? "-" : fmt::format("{:.3f}", best_ratio), best.name);
        if (!peer.empty()) ratios.add(s.name, tokens, ratio, best_ratio);
      };
      const Ours alone = one.measure_ours(false);
      show("alone", alone, alone_ratios);
      // Steps with more tokens do not overlap launches, so both ways are the same.
      Ours in_steps = alone;
      if (one.overlaps_in_steps()) in_steps = one.measure_ours(true);
      show("in steps", in_steps, step_ratios);
      cases.push_back(
          {{"shape", s.name},
           {"tokens", tokens},
           {"cublas_us", peer.empty() ? nlohmann::json() : nlohmann::json(peer.seconds * 1e6)},
           {"alone", json_of(alone, peer)},
           {"in_steps", json_of(in_steps, peer)}});
    }
  }
  nlohmann::json summary;
  if (step_ratios.few > 0) {
    alone_ratios.print("alone");
    step_ratios.print("in steps");
    summary = {{"alone", alone_ratios.json()}, {"in_steps", step_ratios.json()}};
  }
  if (!o.json.empty()) {
    std::ofstream(o.json) << nlohmann::json{{"hbm_read_bytes_per_s", c.hbm},
                                            {"bf16_gemm_flop_per_s", flops},
                                            {"type", o.bf16 ? "BF16" : "F16"},
                                            {"against_cublaslt", summary},
                                            {"cases", cases},
                                            {"rows", c.rows}}
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
