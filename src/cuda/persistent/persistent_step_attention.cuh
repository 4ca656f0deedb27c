// SPDX-License-Identifier: Apache-2.0
// Attention of the persistent step's token (persistent_step.h): each warp computes whole pages with
// a maximum of its own. The warps of a thread block merge their softmax states in shared memory,
// the thread blocks of a kv head in device memory, where the last one to arrive merges.
#pragma once

#include <cuda_fp16.h>

#include "cuda/linear/linear_params.cuh"
#include "cuda/persistent/persistent_step_ring.cuh"

namespace spillway::cuda {

// Shared memory of an attention phase: queries, the last page of K and V, and the warps' softmax
// states.
template <int D, int G>
struct AttentionShared {
  alignas(16) uint16_t q[G * D];
  alignas(16) uint8_t last_page[2][kKvBlockTokens * D * 2];
  float out[kStepWarps][G][D];
  float max[kStepWarps][G], sum[kStepWarps][G];
  bool is_last;
};

// The softmax state of one item in device memory, before the merge over thread blocks.
template <int D, int G>
struct AttentionPart {
  float out[G][D];
  float max[G], sum[G];
};

#if __CUDA_ARCH__ >= 900

// A warp's softmax state of up to G queries. Lane l has elements [l * D / 32, (l + 1) * D / 32) of
// the output.
template <class T, int D, int G>
struct WarpQueries {
  float max[G], sum[G], out[G][D / 32];
  float weight[G], rescale[G];  // kept from the page of K to that of V

  __device__ void clear() {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      max[g] = -INFINITY, sum[g] = 0;
#pragma unroll
      for (int d = 0; d < D / 32; ++d) out[g][d] = 0;
    }
  }

  // Adds a page of K. Lanes 2 t and 2 t + 1 have token t of the page, half of its elements each.
  // They start at different elements, so that eight lanes read from all banks. The token attends to
  // tokens [first, end) of the page; `scale` includes log2(e).
  __device__ __forceinline__ void take_keys(const uint8_t* page, const uint16_t* q, float scale,
                                            int first, int end) {
    constexpr int kPieces = D / 16;
    const int lane = threadIdx.x % 32, half = lane % 2, token = lane / 2;
    const int turn = D == 128 ? lane : lane / 2;
    float score[G][2] = {};
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int piece = (i + turn) % kPieces;
      float k[8];
      Vector16<__half>::unpack(
          *reinterpret_cast<const uint4*>(page + token * (2 * D) + half * D + piece * 16), k);
#pragma unroll
      for (int g = 0; g < G; ++g) {
        float x[8];
        Vector16<T>::unpack(*reinterpret_cast<const uint4*>(q + g * D + half * (D / 2) + piece * 8),
                            x);
#pragma unroll
        for (int e = 0; e < 8; ++e) score[g][e % 2] = fmaf(k[e], x[e], score[g][e % 2]);
      }
    }
    const bool seen = token >= first && token < end;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      float s = score[g][0] + score[g][1];
      s += __shfl_xor_sync(~0U, s, 1);
      s = seen ? s * scale : -INFINITY;
      float top = s;
#pragma unroll
      for (int offset = 2; offset < 32; offset *= 2)
        top = fmaxf(top, __shfl_xor_sync(~0U, top, offset));
      const float both = fmaxf(max[g], top);
      // If all scores so far are -inf, exp2(-inf - -inf) would be NaN.
      const float base = both == -INFINITY ? 0 : both;
      rescale[g] = exp2f(max[g] - base);
      weight[g] = exp2f(s - base);
      float total = weight[g];
#pragma unroll
      for (int offset = 2; offset < 32; offset *= 2) total += __shfl_xor_sync(~0U, total, offset);
      sum[g] = fmaf(sum[g], rescale[g], total);
      max[g] = both;
    }
  }

  __device__ __forceinline__ void take_values(const uint8_t* page) {
    constexpr int kMine = D / 32;  // 2 or 4
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int d = 0; d < kMine; ++d) out[g][d] *= rescale[g];
    }
#pragma unroll
    for (int token = 0; token < kKvBlockTokens; ++token) {
      const __half2* const row =
          reinterpret_cast<const __half2*>(page + token * (2 * D) + lane * (2 * kMine));
      float v[kMine];
      if constexpr (kMine == 4) {
        const uint2 both = *reinterpret_cast<const uint2*>(row);
        const float2 a = __half22float2(reinterpret_cast<const __half2&>(both.x));
        const float2 b = __half22float2(reinterpret_cast<const __half2&>(both.y));
        v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
      } else {
        const float2 a = __half22float2(*row);
        v[0] = a.x, v[1] = a.y;
      }
#pragma unroll
      for (int g = 0; g < G; ++g) {
        const float w = __shfl_sync(~0U, weight[g], 2 * token);
#pragma unroll
        for (int d = 0; d < kMine; ++d) out[g][d] = fmaf(w, v[d], out[g][d]);
      }
    }
  }
};

// A thread's share of what a thread block loads first: the queries, and the page that the token was
// written to, whose rows after the token are zeroed. All loads are issued before any of them is
// waited for: if each were stored as it comes, the page would be requested only when the queries
// have arrived.
template <int D, int G>
class FirstLoads {
 public:
  __device__ __forceinline__ void load_queries(const std::byte* x, int first_query, int queries) {
    const uint4* const q = reinterpret_cast<const uint4*>(x) + first_query * (D / 8) + threadIdx.x;
    query_ = static_cast<int>(threadIdx.x) < queries * (D / 8) ? __ldcg(q) : uint4{0, 0, 0, 0};
  }
  __device__ __forceinline__ void load_page(const StepPhase& phase, int64_t at, int tokens) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int piece = i * kStepThreads + threadIdx.x;
      const auto* const from =
          reinterpret_cast<const uint4*>(phase.plane(piece < kPage ? 1 : 2) + at);
      page_[i] = piece % kPage / kRow < tokens ? __ldcg(from + piece % kPage) : uint4{0, 0, 0, 0};
    }
  }
  __device__ __forceinline__ void store(AttentionShared<D, G>& mem, bool with_page) const {
    if (threadIdx.x < kQueries) reinterpret_cast<uint4*>(mem.q)[threadIdx.x] = query_;
    if (!with_page) return;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      reinterpret_cast<uint4*>(mem.last_page)[i * kStepThreads + threadIdx.x] = page_[i];
    }
  }

 private:
  // Counts in chunks of 16 bytes: all queries, a row, a page of K or V, and a thread's share of
  // both pages.
  static constexpr int kQueries = G * D / 8;
  static constexpr int kRow = 2 * D / 16, kPage = kKvBlockTokens * kRow;
  static constexpr int kPieces = 2 * kPage / kStepThreads;
  static_assert(kQueries <= kStepThreads && 2 * kPage % kStepThreads == 0);
  uint4 query_;
  uint4 page_[kPieces];
};

// Returns exp2(own - base), or 0 where a partition has no visible token.
__device__ __forceinline__ float part_weight(float own, float base) {
  return own == -INFINITY ? 0 : exp2f(own - base);
}

template <class T, int D, int G, class Ring>
__device__ void attention_phase(const StepPhases& step, const StepPhase& phase,
                                const StepToken& token, Ring& ring, uint8_t* shared) {
  static_assert(D == 64 || D == 128);
  auto& mem = *reinterpret_cast<AttentionShared<D, G>*>(shared);
  const PhaseSequence& s = step.sequence;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = step.attends.heads / step.attends.kv_heads;
  const float scale = step.attends.scale * 1.4426950408889634F;
  T* const result = reinterpret_cast<T*>(phase.out[0]);
  auto* const counters = reinterpret_cast<uint32_t*>(step.scratch) + kMergesAt;
  auto* const handed = reinterpret_cast<AttentionPart<D, G>*>(step.scratch + kScratchCounterBytes);
  for (int item = blockIdx.x; item < token.items; item += gridDim.x) {
    const int part = item % token.parts, row = item / token.parts;
    const int head = row / token.query_chunks;
    const int first_query = head * group + row % token.query_chunks * G;
    const int queries = min(G, (head + 1) * group - first_query);
    const int full = token.part_full_pages(part), pages = token.part_pages(part);
    const int begin = token.first_page + part * token.pages_per_part;
    const int last_tokens = token.position % kKvBlockTokens + 1;
    FirstLoads<D, G> loads;
    loads.load_queries(phase.x, first_query, queries);
    if (full < pages) {
      const int64_t at =
          token.block * s.block_bytes + static_cast<int64_t>(head) * (kKvBlockTokens * D * 2);
      loads.load_page(phase, at, last_tokens);
    }
    if (item != static_cast<int>(blockIdx.x)) sync_compute_warps();  // all warps have read mem
    loads.store(mem, full < pages);
    sync_compute_warps();
    WarpQueries<T, D, G> mine;
    mine.clear();
    for (int page = warp; page < pages; page += kStepWarps) {
      const int first = token.first_token - (begin + page) * kKvBlockTokens;
      if (page < full) {
        mine.take_keys(ring.wait(), mem.q, scale, first, kKvBlockTokens);
        ring.release();
        mine.take_values(ring.wait());
        ring.release();
      } else {
        mine.take_keys(mem.last_page[0], mem.q, scale, first, last_tokens);
        mine.take_values(mem.last_page[1]);
      }
    }
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
      for (int d = 0; d < D / 32; ++d) mem.out[warp][g][lane * (D / 32) + d] = mine.out[g][d];
      if (lane == 0) mem.max[warp][g] = mine.max[g], mem.sum[warp][g] = mine.sum[g];
    }
    sync_compute_warps();
    for (int i = threadIdx.x; i < G * D; i += kStepThreads) {
      const int g = i / D, d = i % D;
      float top = -INFINITY, sum = 0, out = 0;
#pragma unroll
      for (int w = 0; w < kStepWarps; ++w) top = fmaxf(top, mem.max[w][g]);
#pragma unroll
      for (int w = 0; w < kStepWarps; ++w) {
        const float weight = part_weight(mem.max[w][g], top);
        sum = fmaf(weight, mem.sum[w][g], sum);
        out = fmaf(weight, mem.out[w][g][d], out);
      }
      if (token.parts == 1) {
        if (g < queries) result[(first_query + g) * D + d] = from_f32<T>(out / sum);
      } else {
        __stcg(&handed[item].out[g][d], out);
        if (d == 0) __stcg(&handed[item].max[g], top), __stcg(&handed[item].sum[g], sum);
      }
    }
    if (token.parts == 1) continue;
    __threadfence();
    sync_compute_warps();
    if (threadIdx.x == 0) {
      mem.is_last = atomicAdd(counters + row, 1) == static_cast<uint32_t>(token.parts - 1);
      if (mem.is_last) counters[row] = 0;
      __threadfence();
    }
    sync_compute_warps();
    if (!mem.is_last) continue;
    const AttentionPart<D, G>* const all = handed + row * token.parts;
    for (int i = threadIdx.x; i < queries * D; i += kStepThreads) {
      const int g = i / D, d = i % D;
      float top = -INFINITY, sum = 0, out = 0;
      for (int p = 0; p < token.parts; ++p) top = fmaxf(top, __ldcg(&all[p].max[g]));
#pragma unroll 4
      for (int p = 0; p < token.parts; ++p) {
        const float weight = part_weight(__ldcg(&all[p].max[g]), top);
        sum = fmaf(weight, __ldcg(&all[p].sum[g]), sum);
        out = fmaf(weight, __ldcg(&all[p].out[g][d]), out);
      }
      result[(first_query + g) * D + d] = from_f32<T>(out / sum);
    }
  }
}

#endif

}  // namespace spillway::cuda
