// SPDX-License-Identifier: Apache-2.0
// Hopper's prefill kernel: what a computing warpgroup does (attention_prefill_wgmma.cu explains the
// algorithm).
#pragma once

#include "cuda/attention/attention_prefill_producer.cuh"
#include "cuda/kernel/wgmma.cuh"

namespace spillway::cuda::prefill {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// One computing warpgroup.
template <int kDim, int kGroups>
struct Consumer {
  using Shape = prefill::Shape<kDim, kGroups>;
  static constexpr int kOutputs = kDim / 2;
  const PrefillArgs& a;
  const Memory<kDim, kGroups>& memory;
  float reference;  // what exponentials are relative to with a unified maximum
  bool chained;     // the end of a work item overlaps the start of the next
  int group, warp, lane;
  RingPlace<Shape::kStages> keys{}, values{};
  RingPlace<kQueryStages> queries{};
  RingPlace<kWorkStages> work{};

  __device__ __forceinline__ void release(uint64_t& barrier) const {
    __syncwarp();
    if (lane == 0) arrive(shared_address(&barrier));
  }
  // Warpgroups take turns at the tensor cores, in their order.
  __device__ __forceinline__ void take_turn() const {
    asm volatile("bar.sync %0, 256;" ::"r"(8 + group) : "memory");
  }
  __device__ __forceinline__ void pass_turn() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(8 + (group + 1 == kGroups ? 0 : group + 1))
                 : "memory");
  }
  // Makes this warpgroup's writes to shared memory visible to its matrix instructions.
  __device__ __forceinline__ void publish_writes() const {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
  }

  __device__ __forceinline__ void start_scores(float (&s)[64]) const {
    const uint32_t rows = memory.queries(queries.stage) + group * 64 * 128;
    const uint32_t tile = memory.keys(keys.stage);
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      wgmma_rows(s, matrix_descriptor(rows + d / 4 * Shape::kQuerySliceBytes + d % 4 * 32),
                 matrix_descriptor(tile + d / 4 * Shape::kSliceBytes + d % 4 * 32), d > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void start_output(float (&out)[kOutputs],
                                               const uint32_t (&exponents)[kTokens / 16][4]) const {
    const uint32_t tile = memory.values(values.stage);
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k)
      wgmma_columns(out, exponents[k], matrix_descriptor(tile + k * 16 * 128, Shape::kSliceBytes));
    wgmma_commit();
  }
  __device__ __forceinline__ void wait_queries() const {
    wait_barrier(shared_address(&memory.shared.queries_full[queries.stage]), queries.parity);
  }
  __device__ __forceinline__ void wait_keys() const {
    wait_barrier(shared_address(&memory.shared.keys_full[keys.stage]), keys.parity);
  }
  __device__ __forceinline__ void wait_values(const RingPlace<Shape::kStages>& at) const {
    wait_barrier(shared_address(&memory.shared.values_full[at.stage]), at.parity);
  }
  __device__ __forceinline__ void release_keys() {
    release(memory.shared.keys_empty[keys.stage]);
    keys.advance();
  }
  __device__ __forceinline__ void release_values() {
    release(memory.shared.values_empty[values.stage]);
    values.advance();
  }

  // Converts BF16 queries to F16 in place.
  __device__ __forceinline__ void convert_queries() const {
    const int thread = warp * kWarpSize + lane;
#pragma unroll
    for (int slice = 0; slice < Shape::kSlices; ++slice) {
      auto* const to = reinterpret_cast<uint4*>(memory.start + queries.stage * Shape::kQueryBytes +
                                                slice * Shape::kQuerySliceBytes + group * 64 * 128);
#pragma unroll
      for (int i = 0; i < 64 * 8; i += 128) {
        uint4& x = to[i + thread];
        x = make_uint4(bf16_pair_to_half2(x.x), bf16_pair_to_half2(x.y), bf16_pair_to_half2(x.z),
                       bf16_pair_to_half2(x.w));
      }
    }
    publish_writes();
  }
  // Zeroes the rows of the last page that no token has written: they may hold anything, NaN too.
  // Every warpgroup does this for itself.
  __device__ __forceinline__ void clear_unwritten(int written) const {
    const int chunks = (kKvBlockTokens - written) * (kDim / 8);
    for (int i = warp * kWarpSize + lane; i < chunks; i += 128) {
      const int row = kTokens - kKvBlockTokens + written + i / (kDim / 8), chunk = i % (kDim / 8);
      *reinterpret_cast<uint4*>(memory.start + (memory.values(values.stage) - memory.first) +
                                chunk / 8 * Shape::kSliceBytes + row * 128 + chunk % 8 * 16) =
          make_uint4(0, 0, 0, 0);
    }
    publish_writes();
  }

  __device__ __forceinline__ void mask(const PrefillWork& w, int first_token,
                                       float (&s)[64]) const {
    const int first = w.position + group * 64;
    const int begin_of_last = a.window > 0 ? max(0, first + 64 - a.window) : 0;
    if (first_token + kTokens - 1 <= first && first_token >= begin_of_last) return;
    const int row_position = first + warp * 16 + lane / 4;
    // For the upper one of the lane's two rows, relative to this lane's first token.
    const int last = row_position - first_token - lane % 4 * 2;
    const int begin =
        (a.window > 0 ? max(0, row_position + 1 - a.window) : 0) - first_token - lane % 4 * 2;
    const int begin8 =
        (a.window > 0 ? max(0, row_position + 9 - a.window) : 0) - first_token - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int at = i / 4 * 8 + i % 2;
      const bool lower = i / 2 % 2 == 1;
      if (at > last + (lower ? 8 : 0) || at < (lower ? begin8 : begin)) s[i] = -INFINITY;
    }
  }

  // Turns scores into exponentials. Returns whether outputs must be scaled by `rescale`.
  template <bool kUnified>
  __device__ __forceinline__ bool exponentiate(float (&s)[64], float (&maximum)[2], float (&sum)[2],
                                               float (&rescale)[2]) const {
    float offset[2] = {reference, reference};
    bool any = false;
    if constexpr (!kUnified) {
      float largest[2];
      bool exceeds = false;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float x = s[2 * h], y = s[2 * h + 1];
#pragma unroll
        for (int j = 1; j < 16; ++j)
          x = fmaxf(x, s[4 * j + 2 * h]), y = fmaxf(y, s[4 * j + 2 * h + 1]);
        x = fmaxf(x, y);
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
        largest[h] = x;
        exceeds |= (x - maximum[h]) * a.scale_log2 > kRescaleAt;
      }
      any = __any_sync(kAllLanes, exceeds);
      if (any) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          // Decided row by row, whatever the other rows of the warp need.
          rescale[h] = 1;
          if (!((largest[h] - maximum[h]) * a.scale_log2 > kRescaleAt)) continue;
          rescale[h] = exp2_fast((maximum[h] - largest[h]) * a.scale_log2);
          maximum[h] = largest[h];
          sum[h] *= rescale[h];
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h)
        offset[h] = maximum[h] == -INFINITY ? 0 : maximum[h] * a.scale_log2;
    }
    float added[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      s[i] = exp2_fast(fmaf(s[i], a.scale_log2, -offset[i / 2 % 2]));
      added[i / 2 % 2] += s[i];
    }
    sum[0] += added[0];  // over this lane's tokens
    sum[1] += added[1];
    return any;
  }

  __device__ __forceinline__ static void round(const float (&s)[64],
                                               uint32_t (&exponents)[kTokens / 16][4]) {
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        exponents[k][j] = pack_half2(s[8 * k + 2 * j], s[8 * k + 2 * j + 1]);
    }
  }

  // Stores the results of a work item and zeroes the outputs. `sum` covers a lane's tokens.
  template <bool kUnified>
  __device__ __forceinline__ void finish(PrefillWork& w, const float (&sum)[2],
                                         float (&out)[kOutputs]) const {
    bool fails = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float all = sum[h];
      all += __shfl_xor_sync(kAllLanes, all, 1);
      all += __shfl_xor_sync(kAllLanes, all, 2);
      const int row = group * 64 + warp * 16 + lane / 4 + 8 * h;
      // An infinite exponential leaves no output finite, so looking at one is enough.
      if (kUnified && row < w.rows) fails |= !(all >= kSmallestSum && isfinite(out[2 * h]));
      const float inverse = __frcp_rn(all);
      if (a.dtype == DType::kF16) {
        store<true>(w, row, h, inverse, out);
      } else {
        store<false>(w, row, h, inverse, out);
      }
    }
    if (kUnified && __any_sync(kAllLanes, fails) && lane == 0 && atomicExch(&w.failed, 1) == 0)
      memory.shared.failed[atomicAdd(&memory.shared.failures, 1)] = w.piece;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out[i] = 0;
  }

  // Computes the current work item and all that follow it with the same kind. The output of an
  // item's last tile is computed together with the first scores of the next item.
  template <bool kUnified>
  __device__ __forceinline__ void attend() {
    constexpr PrefillWork::Kind kKind = kUnified ? PrefillWork::kUnified : PrefillWork::kOnline;
    PrefillWork* w = &memory.shared.work[work.stage];
    float s[64], out[kOutputs], maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, rescale[2];
    uint32_t exponents[kTokens / 16][4];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out[i] = 0;
    int left = w->tiles - 1;  // tiles that have not been scored
    int first_token = w->tokens - kTokens;

    if (a.dtype == DType::kBF16) convert_queries();
    wait_keys();
    wgmma_fence();
    start_scores(s);
    wgmma_wait<0>(s);
    release_keys();
    if (left == 0) release(memory.shared.queries_empty[queries.stage]);
    mask(*w, first_token, s);
    exponentiate<kUnified>(s, maximum, sum, rescale);
    wait_values(values);
    if (w->end % kKvBlockTokens != 0) clear_unwritten(w->end % kKvBlockTokens);
    round(s, exponents);

#pragma unroll 1
    for (;;) {
      PrefillWork* scored = w;
      const bool changes = left == 0;
      if (changes) {
        queries.advance();
        work.advance();
        scored = &memory.shared.work[work.stage];
        wait_queries();
        if (!chained || scored->kind != kKind) break;
        left = scored->tiles;
        first_token = scored->tokens;
        if (a.dtype == DType::kBF16) convert_queries();
      }
      first_token -= kTokens;
      --left;
      wait_keys();
      take_turn();
      wgmma_fence();
      start_scores(s);
      wgmma_fence();
      start_output(out, exponents);
      pass_turn();
      wgmma_wait<1>(s);
      release_keys();
      if (left == 0) release(memory.shared.queries_empty[queries.stage]);
      const float last_sum[2] = {sum[0], sum[1]};
      if (changes) {
        maximum[0] = maximum[1] = -INFINITY;
        sum[0] = sum[1] = 0;
      }
      mask(*scored, first_token, s);
      const bool scaled = exponentiate<kUnified>(s, maximum, sum, rescale);
      // The exponentials must be computed before the next wait. The compiler does not ensure that,
      // as it does not move them across a loop.
      compute_now(s);
      RingPlace<Shape::kStages> next = values;
      next.advance();
      wait_values(next);
      wgmma_wait<0>(out);
      release_values();
      if (changes) {
        finish<kUnified>(*w, last_sum, out);
        w = scored;
        if (w->end % kKvBlockTokens != 0) clear_unwritten(w->end % kKvBlockTokens);
      } else if (!kUnified && scaled) {
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) out[i] *= rescale[i / 2 % 2];
      }
      round(s, exponents);
    }
    wgmma_fence();
    start_output(out, exponents);
    wgmma_wait<0>(out);
    release_values();
    if (!kUnified && a.sums != nullptr) {
      store_sums(*w, maximum, sum, out);
    } else {
      finish<kUnified>(*w, sum, out);
    }
  }

  // Stores the rows' softmax states (SoftmaxState); called only where work items do not overlap.
  __device__ __forceinline__ void store_sums(const PrefillWork& w, const float (&maximum)[2],
                                             const float (&sum)[2],
                                             const float (&out)[kOutputs]) const {
    const int t = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float all = sum[h];
      all += __shfl_xor_sync(kAllLanes, all, 1);
      all += __shfl_xor_sync(kAllLanes, all, 2);
      const int row = group * 64 + warp * 16 + lane / 4 + 8 * h;
      if (row >= w.rows) continue;
      float* const to = a.sums_row(w.first_row + row) + w.head * kDim + 2 * t;
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j)
        *reinterpret_cast<float2*>(to + 8 * j) =
            make_float2(out[4 * j + 2 * h], out[4 * j + 2 * h + 1]);
      if (t == 0) a.store_sum(w.first_row + row, w.head, maximum[h] * a.scale_log2, all);
    }
  }

  // The four lanes of a row exchange chunks of 4 bytes, so that each stores 16 contiguous bytes.
  template <bool kHalf>
  __device__ __forceinline__ void store(const PrefillWork& w, int row, int h, float inverse,
                                        const float (&out)[kOutputs]) const {
    const int t = lane % 4;
    std::byte* const to =
        a.out + ((w.first_row + row) * a.out_stride + int64_t{w.head} * kDim) * 2 + t * 16;
#pragma unroll
    for (int j = 0; j < kDim / 8; j += 4) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = out[4 * (j + i) + 2 * h] * inverse;
        const float high = out[4 * (j + i) + 2 * h + 1] * inverse;
        x[i] = kHalf ? pack_half2(clamp_to_half(low), clamp_to_half(high)) : pack_bf16(low, high);
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if ((i & step) != 0) continue;
          const bool second = (t & step) != 0;
          const uint32_t got = __shfl_xor_sync(kAllLanes, second ? x[i] : x[i + step], step);
          x[i] = second ? got : x[i];
          x[i + step] = second ? x[i + step] : got;
        }
      }
      if (row < w.rows) *reinterpret_cast<uint4*>(to + j * 16) = make_uint4(x[0], x[1], x[2], x[3]);
    }
  }

  template <bool kUnified>
  __device__ __forceinline__ void run() {
    if (group + 1 == kGroups) pass_turn();
    for (;;) {
      wait_queries();
      const PrefillWork::Kind kind = memory.shared.work[work.stage].kind;
      if (kind == PrefillWork::kStop) break;
      if (kUnified && kind == PrefillWork::kFlush) {
        release(memory.shared.queries_empty[queries.stage]);
        queries.advance();
        work.advance();
      } else if (kUnified && kind == PrefillWork::kUnified) {
        attend<true>();
      } else {
        attend<false>();
      }
    }
    if (group == 0) take_turn();  // takes the turn that is left over
  }
};

#endif

}  // namespace spillway::cuda::prefill
