// SPDX-License-Identifier: Apache-2.0
// Attention in F32 on CUDA cores, for inputs that tensor cores do not support or do not compute
// accurately enough: any KV type, head dim and query type. A lane computes the score of one token,
// and every 32nd dim of the outputs.
#pragma once

#include "cuda/attention/attention_merge.cuh"

namespace spillway::cuda {

constexpr int kRowsMaxDims = 256 / kWarpSize;  // dims per lane

// Shared memory holds queries, exponentials of each warp, then each warp's sums, maxima and
// outputs.
inline int rows_shared_bytes(int queries, int head_dim) {
  const int exponents = kDecodeWarps * kTileQueries * kWarpSize;
  const int ends = 2 * kDecodeWarps * kTileQueries;
  return 4 * (queries * head_dim + exponents + ends + kDecodeWarps * queries * head_dim);
}

template <KvType kType, int kQueries>
__device__ __forceinline__ void attend_rows(const DecodeArgs& a, const PartPlace& p, float* shared,
                                            float* slot) {
  const int dim = a.shape.head_dim;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float* queries = shared;
  float* all_exponents = queries + p.queries * dim;
  float* sums = all_exponents + kDecodeWarps * kTileQueries * kWarpSize;
  float* maxima = sums + kDecodeWarps * kTileQueries;
  float* outs = maxima + kDecodeWarps * kTileQueries;
  float* exponents = all_exponents + warp * kTileQueries * kWarpSize;

  if (warp < p.queries) {
    load_query<kType>(a, p.row, p.first_query + warp, queries + warp * dim, lane);
  }
  __syncthreads();

  float sum[kQueries], maximum[kQueries], out[kQueries][kRowsMaxDims];
#pragma unroll
  for (int q = 0; q < kQueries; ++q) {
    sum[q] = 0;
    maximum[q] = -INFINITY;
#pragma unroll
    for (int n = 0; n < kRowsMaxDims; ++n) out[q][n] = 0;
  }
  const int32_t* table = a.row_of(a.batch.block_table, p.sequence);
  const std::byte* const k_plane = a.kv.k();
  const std::byte* const v_plane = a.kv.v();
  const auto page_of = [&](const std::byte* plane, int position) {
    return a.page_at(plane, table[position / kKvBlockTokens], p.kv_head);
  };
  const int first = (p.first_part + p.part) * kPartTokens;
  const int last = a.whole_rows ? p.end : min(p.end, first + kPartTokens);
  for (int base = first + warp * kWarpSize; base < last; base += kPartTokens) {
    const int position = base + lane;
    const bool sees = position >= p.begin && position < last;
    float score[kQueries];
    if (sees) {
      score_key<kType>(a, queries, p.queries, page_of(k_plane, position), position % kKvBlockTokens,
                       score);
    }
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      if (q >= p.queries) break;
      const float x = sees ? score[q] * a.scale_log2 : -INFINITY;
      float largest = x;
#pragma unroll
      for (int step = 16; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
      largest = fmaxf(largest, maximum[q]);
      const float offset = largest == -INFINITY ? 0 : largest;
      const float rescale = exp2_fast(maximum[q] - offset);
      maximum[q] = largest;
      const float e = exp2_fast(x - offset);
      sum[q] = fmaf(sum[q], rescale, e);  // over this lane's tokens
#pragma unroll
      for (int n = 0; n < kRowsMaxDims; ++n) out[q][n] *= rescale;
      exponents[q * kWarpSize + lane] = e;
    }
    __syncwarp();
    const int seen_end = min(kWarpSize, last - base);
    for (int j = max(0, p.begin - base); j < seen_end; ++j) {
      const std::byte* page = page_of(v_plane, base + j);
#pragma unroll
      for (int n = 0; n < kRowsMaxDims; ++n) {
        const int d = lane + n * kWarpSize;
        if (d >= dim) break;
        const float v =
            load_kv<kType, KvPart::kValues>(a.shape, page, (base + j) % kKvBlockTokens, d);
#pragma unroll
        for (int q = 0; q < kQueries; ++q) {
          if (q >= p.queries) break;
          out[q][n] = fmaf(exponents[q * kWarpSize + j], v, out[q][n]);
        }
      }
    }
    __syncwarp();
  }

#pragma unroll
  for (int q = 0; q < kQueries; ++q) {
    if (q >= p.queries) break;
    float all = sum[q];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(kAllLanes, all, step);
    if (lane == 0) {
      sums[warp * kTileQueries + q] = all;
      maxima[warp * kTileQueries + q] = maximum[q];
    }
#pragma unroll
    for (int n = 0; n < kRowsMaxDims; ++n) {
      const int d = lane + n * kWarpSize;
      if (d < dim) outs[(warp * p.queries + q) * dim + d] = out[q][n];
    }
    if constexpr (kType == KvType::kInt4)
      rotate_in_warp(outs + (warp * p.queries + q) * dim, dim, lane);
  }
  __syncthreads();

  for (int i = static_cast<int>(threadIdx.x); i < p.queries * dim; i += kDecodeThreads) {
    const int query = i / dim, d = i % dim;
    float largest = -INFINITY, all = 0, x = 0;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w)
      largest = fmaxf(largest, maxima[w * kTileQueries + query]);
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float own = maxima[w * kTileQueries + query];
      const float weight = own == -INFINITY ? 0 : exp2_fast(own - largest);
      all = fmaf(sums[w * kTileQueries + query], weight, all);
      x = fmaf(outs[(w * p.queries + query) * dim + d], weight, x);
    }
    if (slot != nullptr) {
      slot[i] = x;
      if (d == 0) {
        slot[p.queries * dim + query] = all;
        slot[p.queries * (dim + 1) + query] = largest;
      }
    } else if (a.sums != nullptr) {
      a.sums_row(p.row)[(p.first_query + query) * dim + d] = x;
      if (d == 0) a.store_sum(p.row, p.first_query + query, largest, all);
    } else {
      store_element(a.output(p.row, p.first_query + query), a.dtype, d, x / all);
    }
  }
}

}  // namespace spillway::cuda
