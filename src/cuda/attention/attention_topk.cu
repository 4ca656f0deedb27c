// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/attention_topk.h"

#include "cuda/attention/attention_merge.cuh"
#include "cuda/kernel/launch.cuh"
#include "device/sparse_attention.h"

namespace spillway::cuda {
namespace {

constexpr int kThreads = kDecodeThreads;
constexpr int kWarps = kDecodeWarps;
constexpr int kMaxDims = 256 / kWarpSize;  // dims per lane
// Rows of V that a warp has in flight: over the bus a row takes microseconds.
template <KvType kType>
constexpr int kRowsPerLane = is_half(kType) ? 4 : 1;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
static_assert(kDigits == kThreads && kPartTokens == kThreads);

struct TopKArgs : AttentionArgs {
  int max_partitions = 0;
  float share = 0;                    // of the keys that a row sees, how many it attends to
  const std::byte* home_v = nullptr;  // read over the bus: see BatchView::home_table
  float* scores = nullptr;  // [sequences][heads][max_partitions * 256]; [i] is position first + i

  __device__ __forceinline__ float* scores_of(int sequence, int head) const {
    const int64_t heads = kv_heads * group;
    return scores + (sequence * heads + head) * max_partitions * kPartTokens;
  }
  __device__ __forceinline__ const std::byte* keys_page(int sequence, int kv_head,
                                                        int position) const {
    return page_at(kv.k(), row_of(batch.block_table, sequence)[position / kKvBlockTokens], kv_head);
  }
  __device__ __forceinline__ const std::byte* values_page(int sequence, int kv_head,
                                                          int position) const {
    const int at = position / kKvBlockTokens;
    if (batch.home_table != nullptr) {
      const int32_t home = row_of(batch.home_table, sequence)[at];
      if (home >= 0) return page_at(home_v, home, kv_head);
    }
    return page_at(kv.v(), row_of(batch.block_table, sequence)[at], kv_head);
  }
};

// The positions that a sequence's row may attend to: [begin, end).
struct RowKeys {
  int begin, end;
};
__device__ __forceinline__ RowKeys keys_of(const TopKArgs& a, int sequence) {
  const int end = a.batch.start[sequence] + 1;
  return {a.window > 0 ? max(0, end - a.window) : 0, end};
}

// A thread block scores 256 keys of one kv head, one per thread, for up to 8 of its query heads at
// a time. The grid is (partition, kv head, sequence).
template <KvType kType>
__global__ __launch_bounds__(kThreads) void score_keys_kernel(const __grid_constant__ TopKArgs a) {
  __shared__ float queries[kTileQueries * 256];
  launch_dependents();
  wait_for_previous();
  const int sequence = static_cast<int>(blockIdx.z), kv_head = static_cast<int>(blockIdx.y);
  const RowKeys keys = keys_of(a, sequence);
  const int base = keys.begin + static_cast<int>(blockIdx.x) * kPartTokens;
  if (base >= keys.end) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int position = base + static_cast<int>(threadIdx.x);
  const bool sees = position < keys.end;
  const std::byte* page = sees ? a.keys_page(sequence, kv_head, position) : nullptr;
  const int64_t row = a.batch.first_row[sequence];
  for (int first = 0; first < a.group; first += kTileQueries) {
    const int count = min(kTileQueries, a.group - first);
    __syncthreads();
    if (warp < count) {
      load_query<kType>(a, row, kv_head * a.group + first + warp, queries + warp * a.shape.head_dim,
                        lane);
    }
    __syncthreads();
    if (!sees) continue;
    float score[kTileQueries];
    score_key<kType>(a, queries, count, page, position % kKvBlockTokens, score);
#pragma unroll
    for (int q = 0; q < kTileQueries; ++q) {
      if (q < count) {
        a.scores_of(sequence, kv_head * a.group + first + q)[position - keys.begin] =
            score[q] * a.scale_log2;
      }
    }
  }
}

// Returns an unsigned number that sorts like the float; NaN is the largest, 0 and -0 are equal.
__device__ __forceinline__ uint32_t ordered(float score) {
  if (isnan(score)) return UINT32_MAX;
  const uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0F));
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffU : 0x80000000U);
}
__device__ __forceinline__ float unordered(uint32_t value) {
  return __uint_as_float(value ^ ((value >> 31) != 0 ? 0x80000000U : 0xffffffffU));
}

struct SelectShared {
  int counts[kDigits];
  int warp_sums[2][kWarps];
  uint32_t digit;
  int left;  // how many to find among the numbers that have this digit
};

// Returns how many threads before this one have `flag`, and sets `total` to how many have it in
// all. Every thread of the block calls it; `sums` must not be in use by a call that another thread
// is still in.
__device__ __forceinline__ int rank_in_block(bool flag, int* sums, int& total) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const unsigned flags = __ballot_sync(kAllLanes, flag);
  if (lane == 0) sums[warp] = __popc(flags);
  __syncthreads();
  int before = 0;
  total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    before += w < warp ? sums[w] : 0;
    total += sums[w];
  }
  return before + __popc(flags & ((1U << lane) - 1));
}

// Replaces counts[d] by the sum over [d, 256); thread d has digit d.
__device__ __forceinline__ int sum_from_here(int* counts) {
  const int digit = static_cast<int>(threadIdx.x);
  int sum = counts[digit];
#pragma unroll
  for (int step = 1; step < kDigits; step *= 2) {
    __syncthreads();
    const int other = digit + step < kDigits ? counts[digit + step] : 0;
    __syncthreads();
    sum += other;
    counts[digit] = sum;
  }
  __syncthreads();
  return sum;
}

// The k-th largest of scores[0, n), and how many scores equal to it belong to the k largest. The
// digits are found from the highest to the lowest.
struct Threshold {
  uint32_t value;
  int equal;
};
__device__ __forceinline__ Threshold find_threshold(const float* scores, int n, int k,
                                                    SelectShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t prefix = 0, known = 0;
  int left = k;
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    shared.counts[thread] = 0;
    __syncthreads();
    for (int i = thread; i < n; i += kThreads) {
      const uint32_t value = ordered(scores[i]);
      if ((value & known) == prefix) atomicAdd(&shared.counts[value >> shift & (kDigits - 1)], 1);
    }
    __syncthreads();
    const int own = shared.counts[thread];
    const int from_here = sum_from_here(shared.counts);
    if (from_here >= left && from_here - own < left) {
      shared.digit = static_cast<uint32_t>(thread);
      shared.left = left - (from_here - own);
    }
    __syncthreads();
    prefix |= shared.digit << shift;
    known |= static_cast<uint32_t>(kDigits - 1) << shift;
    left = shared.left;
    __syncthreads();
  }
  return {prefix, left};
}

__device__ __forceinline__ uint32_t largest_in_block(uint32_t value, uint32_t* warps) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value = max(value, __shfl_xor_sync(kAllLanes, value, step));
  if (threadIdx.x % kWarpSize == 0) warps[threadIdx.x / kWarpSize] = value;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) value = max(value, warps[w]);
  return value;
}

// The dims of a lane come in pairs for halves, so that a warp reads whole lines of 128 bytes, at
// which the bus is fast. Each dim is added up by itself, whichever lane has it.
template <KvType kType>
constexpr int kDimsTogether = is_half(kType) ? 2 : 1;

template <KvType kType>
__device__ __forceinline__ int dim_of(int lane, int m) {
  constexpr int kRun = kDimsTogether<kType>;
  return (m / kRun * kWarpSize + lane) * kRun + m % kRun;
}

template <KvType kType>
__device__ __forceinline__ void load_values(const PageShape& s, const std::byte* page, int token,
                                            int lane, float (&v)[kMaxDims]) {
#pragma unroll
  for (int m = 0; m < kMaxDims; m += kDimsTogether<kType>) {
    const int d = dim_of<kType>(lane, m);
    if (d >= s.head_dim) break;
    if constexpr (kType == KvType::kF16) {
      const auto* row = reinterpret_cast<const __half*>(page) + token * s.head_dim;
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(row + d));
      v[m] = pair.x;
      v[m + 1] = pair.y;
    } else if constexpr (kType == KvType::kBf16) {
      const auto* row = reinterpret_cast<const __nv_bfloat16*>(page) + token * s.head_dim;
      const float2 pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(row + d));
      v[m] = pair.x;
      v[m + 1] = pair.y;
    } else {
      v[m] = load_kv<kType, KvPart::kValues>(s, page, token, d);
    }
  }
}

// A thread block attends for one query head, 256 keys at a time: the selected positions are listed
// in order, then warp w adds the values of every eighth of them, from the w-th on. The grid is
// (head, sequence).
template <KvType kType>
__global__ __launch_bounds__(kThreads) void attend_chosen_kernel(
    const __grid_constant__ TopKArgs a) {
  __shared__ SelectShared shared;
  __shared__ uint32_t maxima[kWarps];
  __shared__ int chosen[kThreads];
  __shared__ float weights[kThreads];
  __shared__ float outs[kWarps][256];
  __shared__ float sums[kWarps];
  launch_dependents();
  wait_for_previous();
  const int sequence = static_cast<int>(blockIdx.y), head = static_cast<int>(blockIdx.x);
  const int kv_head = head / a.group;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int dim = a.shape.head_dim;
  const RowKeys keys = keys_of(a, sequence);
  const int n = keys.end - keys.begin;
  const int k = static_cast<int>(attended_keys(a.share, n));
  const float* scores = a.scores_of(sequence, head);

  uint32_t top = 0;
  for (int i = thread; i < n; i += kThreads) top = max(top, ordered(scores[i]));
  const float maximum = unordered(largest_in_block(top, maxima));
  const Threshold threshold = k < n ? find_threshold(scores, n, k, shared) : Threshold{0, n};

  float out[kMaxDims] = {};
  float sum = 0;
  int equal_before = 0;
  for (int base = 0; base < n; base += kThreads) {
    const int i = base + thread;
    const float score = i < n ? scores[i] : 0;
    const uint32_t value = ordered(score);
    int equal = 0, count = 0;
    const bool is_equal = i < n && value == threshold.value;
    const int rank = equal_before + rank_in_block(is_equal, shared.warp_sums[0], equal);
    const bool takes = i < n && (value > threshold.value || (is_equal && rank < threshold.equal));
    const int place = rank_in_block(takes, shared.warp_sums[1], count);
    equal_before += equal;
    if (takes) {
      chosen[place] = keys.begin + i;
      weights[place] = exp2f(score - maximum);
    }
    __syncthreads();
    constexpr int kRows = kRowsPerLane<kType>;
    for (int first = warp; first < count; first += kWarps * kRows) {
      float v[kRows][kMaxDims];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (first + r * kWarps >= count) break;
        const int position = chosen[first + r * kWarps];
        load_values<kType>(a.shape, a.values_page(sequence, kv_head, position),
                           position % kKvBlockTokens, lane, v[r]);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (first + r * kWarps >= count) break;
        const float weight = weights[first + r * kWarps];
        sum += weight;
#pragma unroll
        for (int m = 0; m < kMaxDims; ++m) {
          if (dim_of<kType>(lane, m) < dim) out[m] = fmaf(weight, v[r][m], out[m]);
        }
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int m = 0; m < kMaxDims; ++m) {
    const int d = dim_of<kType>(lane, m);
    if (d < dim) outs[warp][d] = out[m];
  }
  if constexpr (kType == KvType::kInt4) rotate_in_warp(outs[warp], dim, lane);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (thread >= dim) return;
  float all = 0, x = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    all += sums[w];
    x += outs[w][thread];
  }
  store_element(a.output(a.batch.first_row[sequence], head), a.dtype, thread, x / all);
}

template <KvType kType>
void launch_topk(const TopKArgs& a, cudaStream_t stream) {
  const auto sequences = static_cast<unsigned>(a.batch.sequences);
  launch(
      score_keys_kernel<kType>,
      dim3(static_cast<unsigned>(a.max_partitions), static_cast<unsigned>(a.kv_heads), sequences),
      dim3(kThreads), 0, stream, a);
  launch(attend_chosen_kernel<kType>, dim3(static_cast<unsigned>(a.kv_heads * a.group), sequences),
         dim3(kThreads), 0, stream, a);
}

}  // namespace

size_t attention_topk_scratch_bytes(int rows, int heads, int max_partitions) {
  return static_cast<size_t>(rows) * static_cast<size_t>(heads) *
         static_cast<size_t>(max_partitions) * kPartTokens * sizeof(float);
}

void attention_topk(const AttentionCall& call, int max_partitions, std::byte* scratch,
                    size_t scratch_bytes, cudaStream_t stream) {
  if (call.batch.sequences == 0) return;
  SPW_CHECK(call.batch.home_table == nullptr || call.kv.home_v != nullptr, kInternal,
            "attention: values at home, and no plane there");
  SPW_CHECK(attention_topk_scratch_bytes(call.batch.sequences, call.params.heads, max_partitions) <=
                scratch_bytes,
            kInternal, "attention: {} bytes of scratch for the scores of {} rows", scratch_bytes,
            call.batch.sequences);
  constexpr int kMostSequences = 65535;  // the limit of a grid's second and third dimension
  SPW_CHECK(call.batch.sequences <= kMostSequences, kInternal, "attention: {} rows in one launch",
            call.batch.sequences);
  TopKArgs a{attention_args(call)};
  a.max_partitions = max_partitions;
  a.share = call.params.top_k;
  a.home_v = call.kv.home_v;
  a.scores = reinterpret_cast<float*>(scratch);
  switch (call.kv.type) {
    case KvType::kF32:
      return launch_topk<KvType::kF32>(a, stream);
    case KvType::kF16:
      return launch_topk<KvType::kF16>(a, stream);
    case KvType::kBf16:
      return launch_topk<KvType::kBf16>(a, stream);
    case KvType::kInt8:
      return launch_topk<KvType::kInt8>(a, stream);
    case KvType::kInt4:
      return launch_topk<KvType::kInt4>(a, stream);
  }
}

}  // namespace spillway::cuda
