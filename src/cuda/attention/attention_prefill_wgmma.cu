// SPDX-License-Identifier: Apache-2.0
// Prefill attention on Hopper: F16 KV, heads of 64 and 128.
//
// A thread block takes 64 rows of one head for each of its warpgroups; two more warps load tiles of
// 128 keys and values to shared memory, page by page, by tensor copies. For each tile a warpgroup
// starts two products, this tile's scores and the last tile's output, and computes exponentials of
// the scores while the second product runs; warpgroups take turns at starting products, so that
// one's exponentials hide behind the other's products (FlashAttention-3, sections 3.1 and 3.2). The
// online softmax is that of attention_prefill.cu, with the same lazy rescaling.
//
// With a unified maximum (FlashDecoding++, section 3) there are no maxima and no rescaling. A sum
// that is too small then, or an exponential that is infinite in F16, is detected at the end; the
// thread block keeps such work items and repeats them with maxima when it has no other work, or
// many of them. So results are as accurate. H200, 32 heads of 128: 6% faster for 8192 tokens, 3%
// for 4 x 2048, no difference for 2048; with heads of 64 11%.
#include <algorithm>

#include "cuda/attention/attention_prefill_consumer.cuh"
#include "cuda/attention/attention_prefill_wgmma.h"
#include "cuda/kernel/launch.cuh"

namespace spillway::cuda {
namespace {

template <int kDim, int kGroups, bool kUnified>
__global__ __launch_bounds__(
    prefill::Shape<kDim, kGroups>::kThreads,
    1) void attention_wgmma_kernel(const __grid_constant__ PrefillArgs a,
                                   const __grid_constant__ PrefillOrder order,
                                   const __grid_constant__ prefill::Maps maps, float reference,
                                   bool chained) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = prefill::Shape<kDim, kGroups>;
  extern __shared__ std::byte shared_bytes[];
  __shared__ prefill::Shared<Shape::kStages> shared;
  launch_dependents();
  const uint32_t first = (shared_address(shared_bytes) + prefill::kAlignment - 1) /
                         prefill::kAlignment * prefill::kAlignment;
  const prefill::Memory<kDim, kGroups> memory{
      shared, first, shared_bytes + (first - shared_address(shared_bytes))};
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  if (thread == 0) {
    constexpr int kWarps = Shape::kConsumers / kWarpSize;
    for (int s = 0; s < prefill::kQueryStages; ++s) {
      init_barrier(shared_address(&shared.queries_full[s]), 1);
      init_barrier(shared_address(&shared.queries_empty[s]), kWarps + 1);  // + value producer
    }
    for (int s = 0; s < Shape::kStages; ++s) {
      init_barrier(shared_address(&shared.keys_full[s]), 1);
      init_barrier(shared_address(&shared.values_full[s]), 1);
      init_barrier(shared_address(&shared.keys_empty[s]), kWarps);
      init_barrier(shared_address(&shared.values_empty[s]), kWarps);
    }
    shared.failures = 0;
    publish_barriers();
  }
  __syncthreads();
  wait_for_previous();
  if (thread >= Shape::kConsumers) {
    give_registers<Shape::kProducerRegisters>();
    if (warp == Shape::kConsumers / kWarpSize) {
      prefill::KeyProducer<kDim, kGroups, kUnified>{a, order, maps, memory}.run(lane);
    } else if (warp == Shape::kConsumers / kWarpSize + 1) {
      prefill::ValueProducer<kDim, kGroups>{a, maps, memory}.run(lane);
    }
  } else {
    take_registers<Shape::kConsumerRegisters>();
    prefill::Consumer<kDim, kGroups>{a, memory, reference, chained, warp / 4, warp % 4, lane}
        .template run<kUnified>();
  }
#endif
}

constexpr int64_t kManyPieces = 1000;

// The KV of a section of kv heads is at most this large, so that it stays in L2 while the section
// is computed.
constexpr int64_t kSectionBytes = int64_t{32} << 20;

template <int kDim, int kGroups, bool kUnified>
bool try_launch(const AttentionCall& call, const PrefillArgs& a, const UnifiedMax& unified,
                int max_rows, int32_t* counters, const PrefillVariant& variant,
                cudaStream_t stream) {
  using Shape = prefill::Shape<kDim, kGroups>;
  const auto kernel = attention_wgmma_kernel<kDim, kGroups, kUnified>;
  // Only code for sm_90a has these instructions; compiled for sm_90 the kernel is empty.
  cudaFuncAttributes attributes = {};
  SPW_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  if (attributes.binaryVersion != 90 || attributes.sharedSizeBytes == 0) return false;
  const KvLayerView& kv = call.kv;
  const int64_t kv_rows = kv.blocks * kv.kv_heads * kKvBlockTokens;
  const int64_t row_tiles = (max_rows + Shape::kRows - 1) / Shape::kRows;
  const int64_t pieces = row_tiles * call.params.heads * a.batch.sequences;
  if (kv_rows >= INT32_MAX || pieces >= INT32_MAX / 2 || call.q.rows >= INT32_MAX) return false;

  const auto kv_map = [&](const std::byte* data) {
    return make_tensor_map({DType::kF16, data, kv_rows, kDim, kDim, kKvBlockTokens});
  };
  const prefill::Maps maps{
      make_tensor_map({a.dtype, a.q, call.q.rows, call.q.cols, call.q.stride, Shape::kRows}),
      kv_map(kv.k), kv_map(kv.v), static_cast<int>(kv_rows)};
  int device = 0, sms = 0;
  SPW_CUDA_CHECK(cudaGetDevice(&device));
  SPW_CUDA_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  const int64_t head_bytes = int64_t{max_rows} * kDim * 2 * 2;
  const int64_t all_heads = int64_t{kv.kv_heads} * a.batch.sequences;
  const PrefillOrder order{
      static_cast<int>(row_tiles),
      static_cast<int>(variant.sections
                           ? std::clamp<int64_t>(kSectionBytes / head_bytes, 1, all_heads)
                           : all_heads),
      static_cast<int>(pieces), variant.persistent ? counters : nullptr};
  const int64_t blocks = order.counters != nullptr ? std::min<int64_t>(sms, pieces) : pieces;
  SPW_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(Shape::kSharedBytes)));
  launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(Shape::kThreads), Shape::kSharedBytes,
         stream, a, order, maps, (unified.phi + unified.high) * kLog2E - prefill::kTopExponent,
         variant.chained && call.sums == nullptr);
  return true;
}

}  // namespace

bool try_attention_wgmma(const AttentionCall& call, const PrefillArgs& a, const UnifiedMax& unified,
                         int max_rows, int32_t* counters, const PrefillVariant& variant,
                         cudaStream_t stream) {
  if (call.kv.type != KvType::kF16 || !a.whole_vectors || !has_tensor_maps()) return false;
  const auto launch_with = [&]<int kDim, int kGroups>() {
    return unified.enabled && call.sums == nullptr
               ? try_launch<kDim, kGroups, true>(call, a, unified, max_rows, counters, variant,
                                                 stream)
               : try_launch<kDim, kGroups, false>(call, a, unified, max_rows, counters, variant,
                                                  stream);
  };
  if (call.kv.head_dim == 128) return launch_with.template operator()<128, 2>();
  if (call.kv.head_dim == 64) {
    // Thread blocks of 192 rows read keys and values less often, but a small number of them
    // balances work badly.
    const int64_t large = int64_t{(max_rows + 191) / 192} * call.params.heads * a.batch.sequences;
    const bool small_blocks = large < kManyPieces;
    return small_blocks != variant.other_rows ? launch_with.template operator()<64, 2>()
                                              : launch_with.template operator()<64, 3>();
  }
  return false;
}

}  // namespace spillway::cuda
