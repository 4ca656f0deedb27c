// SPDX-License-Identifier: Apache-2.0
// Measures attention on the GPU: decode over cold KV, with and without the unified maximum, as a
// share of the HBM bandwidth that a plain reading kernel reaches in the same process; prefill in
// TFLOP/s; sparse decode with V on the GPU and in host memory, compared with copying all of V.
//
//   gpu_attention_bench [--json FILE] [--quick] [--all-ways] [--prefill-only | --decode-only |
//                        --topk-only]
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/gpu_ceilings.h"
#include "cuda/attention/attention_decode.h"
#include "cuda/attention/attention_prefill.h"
#include "cuda/attention/attention_topk.h"
#include "cuda/cuda_error.h"
#include "cuda/cuda_handles.h"
#include "cuda/kv/kv_append.h"
#include "device/sparse_attention.h"

namespace spillway::cuda {
namespace {

class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    void* data = nullptr;
    SPW_CUDA_CHECK(cudaMalloc(&data, std::max<size_t>(bytes, 16)));
    data_ = static_cast<std::byte*>(data);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { (void)cudaFree(data_); }
  std::byte* get() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  void put(const std::vector<T>& values) {
    SPW_CUDA_CHECK(
        cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
};

// Fills with halves of either sign, from `lowest` to almost four times that, by a hash: there are
// no NaNs and no subnormals.
__global__ void fill_kernel(uint16_t* data, size_t count, unsigned seed, uint16_t lowest) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    unsigned x = static_cast<unsigned>(i) * 2654435761U + seed;
    x ^= x >> 15;
    x *= 2246822519U;
    x ^= x >> 13;
    data[i] = static_cast<uint16_t>(lowest + (x & 0x87ffU));
  }
}

// Returns the seconds per call in the best round. `call(i)` may rotate over data.
template <class Call>
double time_calls(int calls, const Call& call, bool graph = true) {
  cudaStream_t stream;
  cudaEvent_t begin, end;
  SPW_CUDA_CHECK(cudaStreamCreate(&stream));
  SPW_CUDA_CHECK(cudaEventCreate(&begin));
  SPW_CUDA_CHECK(cudaEventCreate(&end));
  for (int i = 0; i < std::min(calls, 3); ++i) call(i, stream);
  SPW_CUDA_CHECK(cudaStreamSynchronize(stream));
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t exec = nullptr;
  if (graph) {
    SPW_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) call(i, stream);
    SPW_CUDA_CHECK(cudaStreamEndCapture(stream, &captured));
    SPW_CUDA_CHECK(cudaGraphInstantiate(&exec, captured, 0));
    SPW_CUDA_CHECK(cudaGraphLaunch(exec, stream));
  }
  double best = 1e9;
  for (int round = 0; round < 4; ++round) {
    SPW_CUDA_CHECK(cudaEventRecord(begin, stream));
    if (graph) {
      SPW_CUDA_CHECK(cudaGraphLaunch(exec, stream));
    } else {
      for (int i = 0; i < calls; ++i) call(i, stream);
    }
    SPW_CUDA_CHECK(cudaEventRecord(end, stream));
    SPW_CUDA_CHECK(cudaEventSynchronize(end));
    float milliseconds = 0;
    SPW_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    best = std::min(best, milliseconds * 1e-3 / calls);
  }
  if (exec != nullptr) SPW_CUDA_CHECK(cudaGraphExecDestroy(exec));
  if (captured != nullptr) SPW_CUDA_CHECK(cudaGraphDestroy(captured));
  SPW_CUDA_CHECK(cudaEventDestroy(begin));
  SPW_CUDA_CHECK(cudaEventDestroy(end));
  SPW_CUDA_CHECK(cudaStreamDestroy(stream));
  return best;
}

struct Heads {
  int heads, kv_heads, dim;
};

// `copies` batches of equal shape, whose KV is used in rotation: what one leaves in the L2 cache is
// evicted before it is used again.
class Batch {
 public:
  Batch(KvType type, Heads h, int sequences, int start, int rows, int copies,
        DType dtype = DType::kF16)
      : type_(type),
        heads_(h),
        sequences_(sequences),
        rows_(rows),
        copies_(copies),
        dtype_(dtype),
        per_sequence_((start + rows + kKvBlockTokens - 1) / kKvBlockTokens),
        blocks_(static_cast<int64_t>(per_sequence_) * sequences * copies),
        plane_bytes_(static_cast<size_t>(blocks_ * h.kv_heads * kv_page_bytes(type, h.dim))),
        k_(plane_bytes_),
        v_(plane_bytes_),
        q_(static_cast<size_t>(sequences) * rows * h.heads * h.dim * 2),
        out_(q_.bytes()),
        ints_(static_cast<size_t>(3 * sequences) * 4),
        table_(static_cast<size_t>(blocks_) * 4) {
    // The fill covers the scales of quantized pages, too; they are small, so that scores stay in
    // range.
    constexpr uint16_t kQuarter = 0x3400, kSmall = 0x1800;
    for (Buffer* b : {&k_, &v_, &q_}) {
      fill_kernel<<<132 * 8, 256>>>(reinterpret_cast<uint16_t*>(b->get()), b->bytes() / 2, 7,
                                    b == &q_ || !is_quantized(type) ? kQuarter : kSmall);
    }
    std::vector<int32_t> ints;
    for (int s = 0; s < sequences; ++s) ints.push_back(s * rows);
    ints.insert(ints.end(), static_cast<size_t>(sequences), rows);
    ints.insert(ints.end(), static_cast<size_t>(sequences), start);
    ints_.put(ints);
    std::vector<int32_t> table(static_cast<size_t>(blocks_));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(1));
    table_.put(table);
    SPW_CUDA_CHECK(cudaDeviceSynchronize());
  }

  AttentionCall call(int i) const {
    AttentionCall c;
    const int64_t columns = int64_t{heads_.heads} * heads_.dim;
    c.q = {dtype_, int64_t{sequences_} * rows_, columns, columns, q_.get()};
    c.out = {dtype_, int64_t{sequences_} * rows_, columns, columns, out_.get()};
    c.kv = {type_, blocks_, heads_.kv_heads, heads_.dim, k_.get(), v_.get()};
    const auto* ints = reinterpret_cast<const int32_t*>(ints_.get());
    c.batch = {sequences_,
               ints,
               ints + sequences_,
               ints + 2 * sequences_,
               reinterpret_cast<const int32_t*>(table_.get()) +
                   static_cast<int64_t>(i % copies_) * per_sequence_ * sequences_,
               per_sequence_};
    c.params = {heads_.heads, 1 / std::sqrt(static_cast<float>(heads_.dim)), 0};
    c.together = sequences_ * rows_;
    return c;
  }
  // Returns the same call with V in host memory at `plane`, except for the last page of each
  // sequence, which stays on the GPU.
  AttentionCall call_at_home(int i, const std::byte* plane, const Buffer& homes) const {
    AttentionCall c = call(i);
    c.kv.home_v = plane;
    c.kv.home_blocks = blocks_;
    const auto* first = reinterpret_cast<const int32_t*>(table_.get());
    c.batch.home_table =
        reinterpret_cast<const int32_t*>(homes.get()) + (c.batch.block_table - first);
    return c;
  }
  void copy_values(std::byte* to) const {
    SPW_CUDA_CHECK(cudaMemcpy(to, v_.get(), plane_bytes_, cudaMemcpyDeviceToHost));
  }
  void copy_home_table(Buffer& to) const {
    std::vector<int32_t> table(static_cast<size_t>(blocks_));
    SPW_CUDA_CHECK(cudaMemcpy(table.data(), table_.get(), table.size() * 4, cudaMemcpyDefault));
    for (size_t i = 1; i <= table.size(); ++i) {
      if (i % static_cast<size_t>(per_sequence_) == 0) table[i - 1] = -1;
    }
    to.put(table);
  }
  size_t plane_bytes() const { return plane_bytes_; }
  std::byte* values() const { return v_.get(); }
  size_t table_bytes() const { return table_.bytes(); }

 private:
  KvType type_;
  Heads heads_;
  int sequences_, rows_, copies_;
  DType dtype_;
  int per_sequence_;
  int64_t blocks_;
  size_t plane_bytes_;
  Buffer k_, v_, q_, out_, ints_, table_;
};

FILE* json = nullptr;
bool first_record = true;
void record(const std::string& fields) {
  if (json == nullptr) return;
  std::fprintf(json, "%s\n  {%s}", first_record ? "" : ",", fields.c_str());
  first_record = false;
}

void bench_decode(double hbm, bool quick) {
  std::printf("\n%-5s %7s %6s %8s %9s | %10s %7s | %10s %7s | %8s\n", "kv", "heads", "batch",
              "context", "KV MB", "unified us", "of HBM", "sync us", "of HBM", "sync/uni");
  const std::vector<Heads> shapes =
      quick ? std::vector<Heads>{{32, 32, 128}}
            : std::vector<Heads>{{32, 32, 128}, {32, 4, 128}, {64, 8, 128}, {32, 32, 64}};
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    for (const Heads& h : shapes) {
      if (type != KvType::kF16 && (h.dim == 64 || h.heads == 64)) continue;
      for (const int context : {1024, 8192, 32768}) {
        for (const int batch : {1, 8, 64}) {
          const double kv_bytes = 2.0 * batch * context * h.kv_heads *
                                  static_cast<double>(kv_page_bytes(type, h.dim)) / kKvBlockTokens;
          if (kv_bytes > 40e9) continue;
          const int copies = std::max(1, static_cast<int>(std::ceil(640e6 / kv_bytes)));
          const Batch data(type, h, batch, context - 1, 1, copies);
          const int parts = attention_partitions(context, 0);
          Buffer scratch(attention_decode_scratch_bytes(batch, h.heads, h.kv_heads, h.dim, parts));
          // Both are measured twice, alternately, because the first measurement after an allocation
          // is slower.
          double seconds[2] = {1e9, 1e9};
          for (const bool unified : {true, false, true, false}) {
            UnifiedMax maximum;
            maximum.enabled = unified;
            const int calls = std::max(20, copies);
            double& best = seconds[unified ? 0 : 1];
            best = std::min(best, time_calls(calls, [&](int i, cudaStream_t stream) {
                              attention_decode(data.call(i), maximum, 1, parts,
                                               {scratch.get(), scratch.bytes()}, stream);
                            }));
          }
          const std::string name(kv_type_name(type));
          std::printf("%-5s %3d/%-3d %6d %8d %9.1f | %10.2f %6.1f%% | %10.2f %6.1f%% | %8.3f\n",
                      name.c_str(), h.heads, h.kv_heads, batch, context, kv_bytes * 1e-6,
                      seconds[0] * 1e6, 100 * kv_bytes / seconds[0] / hbm, seconds[1] * 1e6,
                      100 * kv_bytes / seconds[1] / hbm, seconds[1] / seconds[0]);
          std::fflush(stdout);
          char line[400];
          std::snprintf(line, sizeof(line),
                        "\"op\": \"decode\", \"kv\": \"%s\", \"heads\": %d, \"kv_heads\": %d, "
                        "\"head_dim\": %d, "
                        "\"batch\": %d, \"context\": %d, \"kv_bytes\": %.0f, \"unified_us\": %.3f, "
                        "\"sync_us\": %.3f",
                        name.c_str(), h.heads, h.kv_heads, h.dim, batch, context, kv_bytes,
                        seconds[0] * 1e6, seconds[1] * 1e6);
          record(line);
        }
      }
    }
  }
}

// Variants of prefill that are measured side by side; only Hopper's kernel distinguishes them.
struct PrefillWay {
  const char* name;
  bool unified;
  PrefillVariant variant;
};
constexpr PrefillWay kPrefillWays[] = {
    {"online", false, {}},
    {"unified", true, {}},
    {"one block per tile", false, {.persistent = false}},
    {"not chained", false, {.chained = false}},
    {"all heads at once", false, {.sections = false}},
    {"other block rows", false, {.other_rows = true}},
    {"other block rows, unified", true, {.other_rows = true}},
};

void bench_prefill(bool all_ways) {
  std::printf("\n%-6s %7s %4s %6s %7s %-26s | %10s %9s\n", "kv", "heads", "dim", "batch", "tokens",
              "way", "us", "TFLOP/s");
  struct Case {
    KvType type;
    Heads heads;
    int sequences, rows;
  };
  const Buffer scratch(attention_prefill_scratch_bytes());
  SPW_CUDA_CHECK(cudaMemset(scratch.get(), 0, scratch.bytes()));
  for (const Case& c :
       {Case{KvType::kF16, {32, 32, 128}, 1, 2048}, Case{KvType::kF16, {32, 32, 128}, 1, 8192},
        Case{KvType::kF16, {32, 32, 128}, 4, 2048}, Case{KvType::kF16, {32, 8, 128}, 1, 8192},
        Case{KvType::kF16, {32, 32, 64}, 1, 2048}, Case{KvType::kF16, {32, 32, 64}, 1, 8192},
        Case{KvType::kF16, {16, 16, 256}, 1, 2048}, Case{KvType::kInt8, {32, 32, 128}, 1, 2048},
        Case{KvType::kInt4, {32, 32, 128}, 1, 2048}}) {
    const Batch data(c.type, c.heads, c.sequences, 0, c.rows, 1);
    const double flops = 4.0 * c.sequences * c.heads.heads * c.heads.dim * 0.5 * c.rows * c.rows;
    for (const PrefillWay& way : kPrefillWays) {
      const bool hopper = c.type == KvType::kF16 && c.heads.dim <= 128;
      if (&way != kPrefillWays && (!hopper || (!all_ways && &way != kPrefillWays + 1))) continue;
      if (way.variant.other_rows && c.heads.dim != 64) continue;
      UnifiedMax maximum;
      maximum.enabled = way.unified;
      // Clocks fall under load, so there is a pause, and all variants start from the same clocks.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const double seconds = time_calls(10, [&](int i, cudaStream_t stream) {
        attention_prefill(data.call(i), maximum, c.rows, {scratch.get(), scratch.bytes()}, stream,
                          way.variant);
      });
      std::printf("%-6s %3d/%-3d %4d %6d %7d %-26s | %10.1f %9.1f\n",
                  std::string(kv_type_name(c.type)).c_str(), c.heads.heads, c.heads.kv_heads,
                  c.heads.dim, c.sequences, c.rows, way.name, seconds * 1e6,
                  flops / seconds * 1e-12);
      std::fflush(stdout);
      char line[300];
      std::snprintf(
          line, sizeof(line),
          "\"op\": \"prefill\", \"kv\": \"%s\", \"heads\": %d, \"kv_heads\": %d, "
          "\"head_dim\": %d, "
          "\"batch\": %d, \"tokens\": %d, \"way\": \"%s\", \"us\": %.2f, \"tflops\": %.1f",
          std::string(kv_type_name(c.type)).c_str(), c.heads.heads, c.heads.kv_heads, c.heads.dim,
          c.sequences, c.rows, way.name, seconds * 1e6, flops / seconds * 1e-12);
      record(line);
    }
  }
}

// Attends to a tenth of the keys. For comparison, all of V is copied over the bus in one large
// copy, which is what moves without sparse attention.
void bench_topk() {
  std::printf("\n%7s %6s %8s | %10s %10s | %8s %7s | %10s %7s\n", "heads", "batch", "context",
              "on GPU us", "at home us", "rows MB", "GB/s", "copy us", "GB/s");
  constexpr float kShare = 0.1F;
  for (const Heads& h : {Heads{32, 32, 128}, Heads{56, 56, 128}, Heads{32, 8, 128}}) {
    for (const int context : {512, 4096}) {
      for (const int batch : {1, 8, 48}) {
        const Batch data(KvType::kF16, h, batch, context - 1, 1, 1);
        if (data.plane_bytes() > size_t{900} << 20) continue;
        const PinnedMemory memory = make_pinned(data.plane_bytes());
        auto* const plane = static_cast<std::byte*>(memory.get());
        data.copy_values(plane);
        Buffer homes(data.table_bytes());
        data.copy_home_table(homes);
        const int parts = attention_partitions(context, 0);
        const Buffer scratch(attention_topk_scratch_bytes(batch, h.heads, parts));
        const auto seconds_of = [&](bool at_home) {
          return time_calls(20, [&](int i, cudaStream_t stream) {
            AttentionCall call = at_home ? data.call_at_home(i, plane, homes) : data.call(i);
            call.params.top_k = kShare;
            attention_topk(call, parts, scratch.get(), scratch.bytes(), stream);
          });
        };
        const double here = seconds_of(false), home = seconds_of(true);
        const double copy = time_calls(4, [&](int, cudaStream_t stream) {
          SPW_CUDA_CHECK(cudaMemcpyAsync(data.values(), plane, data.plane_bytes(),
                                         cudaMemcpyHostToDevice, stream));
        });
        const double row_bytes =
            static_cast<double>(attended_keys(kShare, context)) * batch * h.heads * h.dim * 2;
        std::printf("%3d/%-3d %6d %8d | %10.1f %10.1f | %8.2f %7.1f | %10.1f %7.1f\n", h.heads,
                    h.kv_heads, batch, context, here * 1e6, home * 1e6, row_bytes * 1e-6,
                    row_bytes / home * 1e-9, copy * 1e6,
                    static_cast<double>(data.plane_bytes()) / copy * 1e-9);
        std::fflush(stdout);
        char line[400];
        std::snprintf(line, sizeof(line),
                      "\"op\": \"topk\", \"heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, "
                      "\"batch\": %d, \"context\": %d, \"row_bytes\": %.0f, \"gpu_us\": %.2f, "
                      "\"home_us\": %.2f, \"copy_us\": %.2f",
                      h.heads, h.kv_heads, h.dim, batch, context, row_bytes, here * 1e6, home * 1e6,
                      copy * 1e6);
        record(line);
      }
    }
  }
}

int run(int argc, char** argv) {
  bool quick = false, decode = true, prefill = true, topk = false, all_ways = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--quick") {
      quick = true;
    } else if (arg == "--all-ways") {
      all_ways = true;
    } else if (arg == "--decode-only") {
      prefill = false;
    } else if (arg == "--prefill-only") {
      decode = false;
    } else if (arg == "--topk-only") {
      prefill = decode = false;
      topk = true;
    } else if (arg == "--json" && i + 1 < argc) {
      json = std::fopen(argv[++i], "w");
    } else {
      std::fprintf(
          stderr,
          "usage: %s [--json FILE] [--quick] [--all-ways] [--prefill-only | --decode-only | "
          "--topk-only]\n",
          argv[0]);
      return 2;
    }
  }
  const double hbm = bench::hbm_read_bytes_per_s();
  std::printf("HBM read bandwidth: %.0f GB/s\n", hbm * 1e-9);
  if (json != nullptr) std::fprintf(json, "{\"hbm_gb_per_s\": %.1f, \"cases\": [", hbm * 1e-9);
  if (prefill) bench_prefill(all_ways);
  if (decode) bench_decode(hbm, quick);
  if (topk) bench_topk();
  if (json != nullptr) {
    std::fprintf(json, "\n]}\n");
    std::fclose(json);
  }
  return 0;
}

}  // namespace
}  // namespace spillway::cuda

int main(int argc, char** argv) {
  try {
    return spillway::cuda::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
