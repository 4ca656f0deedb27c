// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/attention_decode.h"

#include <algorithm>

#include "cuda/attention/attention_decode_codes.cuh"
#include "cuda/attention/attention_decode_mma.cuh"
#include "cuda/attention/attention_decode_turns.cuh"
#include "cuda/attention/attention_rows.cuh"
#include "cuda/gpu_shape.h"
#include "cuda/kernel/launch.cuh"

namespace spillway::cuda {
namespace {

// Returns as many thread blocks as shared memory holds, because bytes in flight keep HBM busy, but
// no more than leave enough registers for the outputs.
template <KvType kType, int kDim, int kBuffers>
constexpr int decode_blocks_per_sm() {
  constexpr int kReserved = 1024;  // bytes per thread block, taken by the driver
  constexpr int kFits =
      228 * 1024 / (static_cast<int>(sizeof(DecodeShared<kType, kDim, kBuffers>)) + kReserved);
  constexpr int kWarps = DecodeShape<kType, kDim, kBuffers>::kWarps;
  constexpr int kMost = (kDim > 128 || kType == KvType::kInt4 ? 16
                         : is_quantized(kType)                ? 20
                                                              : 24) /
                        kWarps;
  return std::max(1, std::min(kFits, kMost));
}
template <KvType kType, int kDim, int kBuffers>
constexpr int decode_threads() {
  return DecodeShape<kType, kDim, kBuffers>::kWarps * kWarpSize;
}

// Stores the tile's queries in shared memory, one by each warp.
template <KvType kType, int kDim, int kBuffers>
__device__ __forceinline__ void stage_queries(const DecodeArgs& a, const PartPlace& p,
                                              DecodeShared<kType, kDim, kBuffers>& shared) {
  if constexpr (is_quantized(kType)) {
    stage_code_queries(a, p, shared);
  } else {
    using Shape = DecodeShape<kType, kDim, kBuffers>;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    __half* to = shared.queries[warp];
    if (warp >= p.queries) {
      for (int d = lane; d < Shape::kQueryDims; d += kWarpSize) to[d] = __float2half_rn(0);
      return;
    }
    const std::byte* from = a.query(p.row, p.first_query + warp);
    for (int d = lane; d < Shape::kQueryDims; d += kWarpSize) {
      const float x = d < kDim ? load_element(from, a.dtype, d) : 0;
      to[d] = MmaElements<kType>::query(x);
    }
  }
}

// Adds up the warps' results in their order, and writes the sum to the partition's slot or to out.
// `unified`: all are relative to the unified maximum.
template <KvType kType, int kDim, int kBuffers>
__device__ __forceinline__ void store_part(const DecodeArgs& a, const PartPlace& p,
                                           DecodeShared<kType, kDim, kBuffers>& shared,
                                           bool unified, float* slot) {
  constexpr int kFours = kDim / 4;
  constexpr int kWarps = DecodeShape<kType, kDim, kBuffers>::kWarps;
  for (int i = static_cast<int>(threadIdx.x); i < p.queries * kFours; i += kWarps * kWarpSize) {
    const int query = i / kFours, d = i % kFours * 4;
    float reference = a.reference;
    float sum = 0;
    float4 out = make_float4(0, 0, 0, 0);
    if (unified) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float4 x = *reinterpret_cast<const float4*>(shared.out(w, query) + d);
        sum += shared.sums[w][query];
        out.x += x.x;
        out.y += x.y;
        out.z += x.z;
        out.w += x.w;
      }
    } else {
      reference = -INFINITY;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) reference = fmaxf(reference, shared.references[w][query]);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float4 x = *reinterpret_cast<const float4*>(shared.out(w, query) + d);
        const float own = shared.references[w][query];
        const float weight = own == -INFINITY ? 0 : exp2_fast(own - reference);
        sum = fmaf(shared.sums[w][query], weight, sum);
        out.x = fmaf(x.x, weight, out.x);
        out.y = fmaf(x.y, weight, out.y);
        out.z = fmaf(x.z, weight, out.z);
        out.w = fmaf(x.w, weight, out.w);
      }
    }
    if constexpr (kType == KvType::kInt4) {
      // 16 threads with neighbouring i hold a group, and the loop ends after a whole group.
      static_assert(kDim % 64 == 0);
      out = rotate_fours(out, 0xffffU << (threadIdx.x & 16U));
    }
    if (slot != nullptr) {
      reinterpret_cast<float4*>(slot)[i] = out;
      if (d == 0) {
        slot[p.queries * kDim + query] = sum;
        slot[p.queries * (kDim + 1) + query] = reference;
      }
      continue;
    }
    const float inverse = 1 / sum;
    std::byte* to = a.output(p.row, p.first_query + query);
    store_element(to, a.dtype, d, out.x * inverse);
    store_element(to, a.dtype, d + 1, out.y * inverse);
    store_element(to, a.dtype, d + 2, out.z * inverse);
    store_element(to, a.dtype, d + 3, out.w * inverse);
  }
}

template <KvType kType, int kDim, int kBuffers, bool kUnified, bool kLong>
__global__ __launch_bounds__(
    decode_threads<kType, kDim, kBuffers>(),
    decode_blocks_per_sm<kType, kDim,
                         kBuffers>()) void attention_decode_kernel(const __grid_constant__
                                                                       DecodeArgs a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(16) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<DecodeShared<kType, kDim, kBuffers>*>(shared_bytes);
  launch_dependents();
  using Shape = DecodeShape<kType, kDim, kBuffers>;
  using Part = WarpPart<kType, kDim, kBuffers, kUnified, kLong>;
  typename Part::Place p;
  if (!Part::find(a, p)) {
    wait_for_previous();
    return;
  }
  Part part(a, p, shared);
  // Loads of KV that earlier steps have written need not wait for the previous kernel. Calls over
  // KV partitions do wait: this step may have written KV in front of their rows.
  const bool early = a.covered == nullptr && part.base + Shape::kWarpTokens <= p.start;
  if (!early) wait_for_previous();
  part.start();
  if (early) wait_for_previous();
  stage_queries(a, p, shared);
  __syncthreads();
  bool own = part.finish();
  if constexpr (kUnified) {
    own = __syncthreads_or(own) != 0;
  } else {
    __syncthreads();
  }
  float* slot = p.parts == 1 && a.sums == nullptr
                    ? nullptr
                    : a.slots + (p.tile_index * a.max_partitions + p.part) * a.slot_floats;
  store_part(a, p, shared, kUnified && !own, slot);
#endif
}

// The kernel for any KV type, head dim and query type.
template <KvType kType, int kQueries>
__global__ __launch_bounds__(kDecodeThreads) void attention_rows_kernel(
    const __grid_constant__ DecodeArgs a) {
  extern __shared__ __align__(16) std::byte shared_bytes[];
  launch_dependents();
  wait_for_previous();
  PartPlace p;
  if (!find_place(a, p)) return;
  if (a.whole_rows && p.part != 0) return;
  float* slot = (p.parts == 1 && a.sums == nullptr) || a.whole_rows
                    ? nullptr
                    : a.slots + (p.tile_index * a.max_partitions + p.part) * a.slot_floats;
  attend_rows<kType, kQueries>(a, p, reinterpret_cast<float*>(shared_bytes), slot);
}

__global__ __launch_bounds__(kDecodeThreads) void attention_merge_kernel(
    const __grid_constant__ DecodeArgs a) {
  launch_dependents();
  wait_for_previous();
  merge_row(a);
}

__global__ __launch_bounds__(kDecodeThreads) void attention_merge_few_kernel(
    const __grid_constant__ DecodeArgs a) {
  launch_dependents();
  wait_for_previous();
  merge_few(a);
}

bool has_tensor_cores() {
  int device = 0, major = 0;
  SPW_CUDA_CHECK(cudaGetDevice(&device));
  SPW_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 8;
}

template <class Kernel>
void launch_decode(Kernel kernel, const DecodeArgs& a, int threads, int shared_bytes,
                   cudaStream_t stream) {
  if (shared_bytes > 48 * 1024) {
    SPW_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  }
  const int64_t blocks =
      static_cast<int64_t>(a.tiles) * a.max_partitions * a.batch.sequences * a.max_rows;
  SPW_CHECK(blocks <= INT32_MAX, kInternal, "attention: too many parts in one launch");
  launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)),
         static_cast<size_t>(shared_bytes), stream, a);
}

template <KvType kType, int kDim, int kBuffers>
void launch_mma_with(const DecodeArgs& a, bool unified, cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(sizeof(DecodeShared<kType, kDim, kBuffers>));
  constexpr int kThreads = decode_threads<kType, kDim, kBuffers>();
  const auto go = [&]<bool kLong>() {
    launch_decode(unified ? attention_decode_kernel<kType, kDim, kBuffers, true, kLong>
                          : attention_decode_kernel<kType, kDim, kBuffers, false, kLong>,
                  a, kThreads, kBytes, stream);
  };
  if constexpr (!is_quantized(kType)) {
    if (!a.long_parts) return go.template operator()<false>();
  }
  go.template operator()<true>();
}

template <KvType kType, int kDim>
void launch_mma_of(const DecodeArgs& a, bool unified, cudaStream_t stream) {
  constexpr int kMany = decode_buffers(kType, kDim, true);
  constexpr int kFew = decode_buffers(kType, kDim, false);
  static_assert(sizeof(DecodeShared<kType, kDim, kFew>) <= 99 * 1024);
  if constexpr (kFew != kMany) {
    int device = 0, limit = 0;
    SPW_CUDA_CHECK(cudaGetDevice(&device));
    SPW_CUDA_CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    // At head dim 128, more thread blocks with fewer buffers each are faster (H200: 90% of HBM's
    // speed, not 86%), unless there are too few of them.
    int sms = 0;
    SPW_CUDA_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    const int64_t blocks = int64_t{a.tiles} * a.max_partitions * a.batch.sequences * a.max_rows;
    if ((kDim == 128 && blocks > sms) ||
        static_cast<int>(sizeof(DecodeShared<kType, kDim, kMany>)) > limit)
      return launch_mma_with<kType, kDim, kFew>(a, unified, stream);
  }
  launch_mma_with<kType, kDim, kMany>(a, unified, stream);
}

bool has_mma_kernel(KvType type, int dim) {
  if (type == KvType::kF32) return false;
  const bool groups = dim == 64 || dim == 128 || dim == 256;
  return groups || (type != KvType::kInt4 && (dim == 80 || dim == 96));
}
void launch_mma(KvType type, const DecodeArgs& a, bool unified, cudaStream_t stream) {
  const auto go = [&]<KvType kType>() {
    switch (a.shape.head_dim) {
      case 64:
        return launch_mma_of<kType, 64>(a, unified, stream);
      case 128:
        return launch_mma_of<kType, 128>(a, unified, stream);
      case 256:
        return launch_mma_of<kType, 256>(a, unified, stream);
      default:
        break;
    }
    if constexpr (kType != KvType::kInt4) {
      if (a.shape.head_dim == 80) return launch_mma_of<kType, 80>(a, unified, stream);
      return launch_mma_of<kType, 96>(a, unified, stream);
    }
  };
  if (type == KvType::kF16) return go.template operator()<KvType::kF16>();
  if (type == KvType::kBf16) return go.template operator()<KvType::kBf16>();
  if (type == KvType::kInt8) return go.template operator()<KvType::kInt8>();
  go.template operator()<KvType::kInt4>();
}

// Returns the most partitions that a row has whose tokens would fill `parts` partitions of
// kPartTokens.
int most_long_parts(int parts, const DecodeArgs& a) {
  const int two = a.two_from / kPartTokens, four = a.four_from / kPartTokens;
  int most = std::min(parts, two + 1);
  if (parts > two) most = std::max(most, std::min(parts / 2 + 1, four / 2 + 1));
  if (parts > four) most = std::max(most, (parts + 2) / 4 + 1);
  return most;
}

// Makes partitions of F16 and BF16 KV long where enough thread blocks for the GPU are left, given
// all rows of the step.
void set_long_parts(DecodeArgs& a, int together) {
  if (together == 0) return;
  const int64_t row_tiles = int64_t{together} * a.tiles, sms = current_gpu().sms;
  const auto from = [&](int64_t least, int tokens, int blocks_per_sm) {
    const int64_t wanted = tokens * blocks_per_sm * sms / row_tiles / tokens * tokens;
    return static_cast<int>(std::clamp<int64_t>(wanted, least, int64_t{1} << 28));
  };
  a.two_from = from(kTwoFrom, 2 * kPartTokens, 2);
  a.four_from = from(kFourFrom, 4 * kPartTokens, 4);
}

template <KvType kType>
void launch_rows_of(const DecodeArgs& a, cudaStream_t stream) {
  const int queries = std::min(a.group, kTileQueries);
  const int bytes = rows_shared_bytes(queries, a.shape.head_dim);
  if (queries == 1) {
    launch_decode(attention_rows_kernel<kType, 1>, a, kDecodeThreads, bytes, stream);
  } else if (queries <= 4) {
    launch_decode(attention_rows_kernel<kType, 4>, a, kDecodeThreads, bytes, stream);
  } else {
    launch_decode(attention_rows_kernel<kType, 8>, a, kDecodeThreads, bytes, stream);
  }
}

void launch_rows(KvType type, const DecodeArgs& a, cudaStream_t stream) {
  switch (type) {
    case KvType::kF32:
      return launch_rows_of<KvType::kF32>(a, stream);
    case KvType::kF16:
      return launch_rows_of<KvType::kF16>(a, stream);
    case KvType::kBf16:
      return launch_rows_of<KvType::kBf16>(a, stream);
    case KvType::kInt8:
      return launch_rows_of<KvType::kInt8>(a, stream);
    case KvType::kInt4:
      return launch_rows_of<KvType::kInt4>(a, stream);
  }
}

int tiles_of(int heads, int kv_heads) {
  return kv_heads * ((heads / kv_heads + kTileQueries - 1) / kTileQueries);
}
int slot_floats_of(int heads, int kv_heads, int head_dim) {
  const int queries = std::min(heads / kv_heads, kTileQueries);
  return (queries * (head_dim + 2) + 3) / 4 * 4;  // whole float4
}

DecodeArgs decode_args(const AttentionCall& call, int max_rows, int max_partitions) {
  DecodeArgs a{attention_args(call)};
  a.tiles = tiles_of(call.params.heads, a.kv_heads);
  a.max_rows = max_rows;
  a.max_partitions = max_partitions;
  a.slot_floats = slot_floats_of(call.params.heads, a.kv_heads, a.shape.head_dim);
  a.by_tiles = FastDivisor(a.tiles);
  a.by_max_parts = FastDivisor(a.max_partitions);
  a.by_max_rows = FastDivisor(a.max_rows);
  a.by_tiles_per_head = FastDivisor(a.tiles / a.kv_heads);
  return a;
}

// If results are merged into softmax states, rows with one partition have a slot, too.
constexpr int kFewestSlots = 2;

}  // namespace

void check_attention_call(const AttentionCall& call) {
  const KvLayerView& kv = call.kv;
  SPW_CHECK(kv.head_dim > 0 && kv.head_dim % 8 == 0 && kv.head_dim <= 256, kInternal,
            "attention: head dim {} is not a multiple of 8 up to 256", kv.head_dim);
  SPW_CHECK(kv.kv_heads > 0 && call.params.heads > 0 && call.params.heads % kv.kv_heads == 0,
            kInternal, "attention: {} heads over {} kv heads", call.params.heads, kv.kv_heads);
  const DType type = call.q.dtype;
  const bool to_sums = call.sums != nullptr;
  SPW_CHECK((to_sums || type == call.out.dtype) &&
                (type == DType::kF16 || type == DType::kBF16 || type == DType::kF32),
            kInternal, "attention: queries and outputs of {} and {}", dtype_name(type),
            dtype_name(call.out.dtype));
  const int64_t columns = int64_t{call.params.heads} * kv.head_dim;
  SPW_CHECK(call.q.cols == columns &&
                (to_sums || (call.out.cols == columns && call.q.rows == call.out.rows)),
            kInternal, "attention: q [{}, {}] and out [{}, {}] for {} columns", call.q.rows,
            call.q.cols, call.out.rows, call.out.cols, columns);
}

int attention_partitions(int64_t context, int window) {
  const int64_t parts = (context + kPartTokens - 1) / kPartTokens;
  // A window that ends anywhere touches one partition more than it fills.
  const int64_t seen = window > 0 ? (int64_t{window} + kPartTokens - 2) / kPartTokens + 1 : parts;
  return static_cast<int>(std::max<int64_t>(1, std::min(parts, seen)));
}

size_t attention_decode_scratch_bytes(int rows, int heads, int kv_heads, int head_dim,
                                      int max_partitions, bool to_sums) {
  if (to_sums) max_partitions = std::max(max_partitions, kFewestSlots);
  if (max_partitions <= 1) return 0;
  return static_cast<size_t>(rows) * tiles_of(heads, kv_heads) * max_partitions *
         slot_floats_of(heads, kv_heads, head_dim) * sizeof(float);
}

void attention_decode(const AttentionCall& call, const UnifiedMax& unified, int max_rows,
                      int max_partitions, const AttentionScratch& scratch, cudaStream_t stream) {
  if (call.batch.sequences == 0 || max_rows == 0) return;
  if (call.sums != nullptr) max_partitions = std::max(max_partitions, kFewestSlots);
  DecodeArgs a = decode_args(call, max_rows, max_partitions);
  if (unified.enabled) {
    a.low = (unified.phi + unified.low) * kLog2E;
    a.high = (unified.phi + unified.high) * kLog2E;
    a.reference = a.high - kTopExponent;
  }
  const bool by_rows = call.q.dtype == DType::kF32 || !has_tensor_cores() ||
                       !has_mma_kernel(call.kv.type, a.shape.head_dim);
  // Depends on the model's shape and the step, not on the other rows of the call: see
  // attention_decode.h.
  a.long_parts = !by_rows && (is_quantized(call.kv.type) || a.group > 1);
  if (a.long_parts) {
    if (!is_quantized(call.kv.type)) set_long_parts(a, call.together);
    a.expected = max_partitions * kPartTokens;
    max_partitions = a.max_partitions = most_long_parts(max_partitions, a);
    a.by_max_parts = FastDivisor(a.max_partitions);
  }
  if (max_partitions > 1) {
    const int64_t tiles = int64_t{call.batch.sequences} * max_rows * a.tiles;
    SPW_CHECK(tiles * max_partitions * a.slot_floats * 4 <= static_cast<int64_t>(scratch.bytes),
              kInternal, "attention: {} bytes of scratch for {} rows of {} parts", scratch.bytes,
              call.batch.sequences * max_rows, max_partitions);
    a.slots = reinterpret_cast<float*>(scratch.data);
  }
  if (by_rows) {
    launch_rows(call.kv.type, a, stream);
  } else {
    launch_mma(call.kv.type, a, unified.enabled, stream);
  }
  if (max_partitions > 1) {
    const bool few = max_partitions <= kDecodeWarps;
    const int64_t rows = int64_t{call.batch.sequences} * max_rows * call.params.heads;
    const int64_t blocks = few ? (rows + kDecodeWarps - 1) / kDecodeWarps : rows;
    launch(few ? attention_merge_few_kernel : attention_merge_kernel,
           dim3(static_cast<unsigned>(blocks)), dim3(kDecodeThreads), 0, stream, a);
  }
}

void attention_rows(const AttentionCall& call, int max_rows, cudaStream_t stream) {
  if (call.batch.sequences == 0 || max_rows == 0) return;
  DecodeArgs a = decode_args(call, max_rows, 1);
  a.whole_rows = true;
  launch_rows(call.kv.type, a, stream);
}

}  // namespace spillway::cuda
