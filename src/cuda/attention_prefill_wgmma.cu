// SPDX-License-Identifier: Apache-2.0
// Prefill attention on Hopper: F16 KV, heads of 64 and 128.
//
// A block takes 64 rows of one head for each of its warpgroups; one more warp brings tiles of 128
// keys and values to shared memory, page by page, by tensor copies. For each tile a warpgroup
// starts two products, this tile's scores and the last tile's output, and computes exponents of the
// scores while the second product runs; warpgroups take turns at starting products, so that one's
// exponents hide behind the other's products (FlashAttention-3, sections 3.1 and 3.2). Online
// softmax as in attention_prefill.cu, with the same lazy rescaling.
//
// With a unified maximum (FlashDecoding++, section 3) there are no maxima and no rescaling. A sum
// that is too small then, or an exponent that is infinite in F16, is found at the end; the block
// keeps such pieces of work and does them again when it has no others, with maxima. So results are
// as accurate. Should many fail, the others are not tried.
#include <algorithm>

#include "cuda/attention_prefill_wgmma.h"
#include "cuda/attention_prefill_work.cuh"
#include "cuda/launch.cuh"
#include "cuda/tensor_map.h"
#include "cuda/wgmma.cuh"

namespace spillway::cuda {
namespace {

constexpr int kTokens = 128;
constexpr int kQueryStages = 2, kWorkStages = kQueryStages + 2;
constexpr int kPages = kTokens / kKvBlockTokens;
constexpr uint32_t kAlignment = 1024;
constexpr float kRescaleAt = 8;  // see attention_prefill.cu
// Exponents of the unified maximum: the range's highest score is 2^15. A row whose sum is 1 or more
// loses no more to F16's smallest numbers than one whose largest exponent is 1.
constexpr float kTopExponent = 15, kSmallestSum = 1;
constexpr int kManyFailures = 16, kMaxFailures = 32;  // some may be on their way

struct Maps {
  CUtensorMap q;     // [rows][heads * head_dim], boxes of a block's rows
  CUtensorMap k, v;  // [blocks * kv_heads * 16][head_dim], boxes of a page
  int rows;          // of k and v
};

template <int kDim, int kGroups>
struct PrefillShape {
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kConsumers = 128 * kGroups;
  static constexpr int kThreads = kConsumers + 128;  // registers are given by whole warpgroups
  static constexpr int kConsumerRegisters = kGroups == 2 ? 240 : 160;
  static constexpr int kProducerRegisters = kGroups == 2 ? 24 : 32;
  // What all have together is what they start with: 168 or 128 each.
  static_assert(kGroups * kConsumerRegisters + kProducerRegisters ==
                (kGroups + 1) * (kGroups == 2 ? 168 : 128));
  // Matrices are in slices of 64 dims.
  static constexpr int kSlices = kDim / 64;
  static constexpr uint32_t kSliceBytes = kTokens * 128, kTileBytes = kSlices * kSliceBytes;
  static constexpr uint32_t kQuerySliceBytes = kRows * 128;
  static constexpr uint32_t kQueryBytes = kSlices * kQuerySliceBytes;
  static constexpr int kStages = kDim == 128 ? 2 : 4;
  static constexpr uint32_t kSharedBytes =
      kQueryStages * kQueryBytes + 2 * kStages * kTileBytes + kAlignment;
};

template <int kStages>
struct Shared {
  uint64_t queries_full[kQueryStages], queries_empty[kQueryStages];
  uint64_t keys_full[kStages], keys_empty[kStages], values_full[kStages], values_empty[kStages];
  PrefillWork work[kWorkStages];  // one is needed until the next one has been scored
  int failures;
  int failed[kMaxFailures];
};

__device__ __forceinline__ uint32_t shared32(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kDim, int kGroups>
struct Memory {
  using Shape = PrefillShape<kDim, kGroups>;
  Shared<Shape::kStages>& shared;
  uint32_t first;    // address
  std::byte* start;  // the same
  __device__ __forceinline__ uint32_t queries(int stage) const {
    return first + stage * Shape::kQueryBytes;
  }
  __device__ __forceinline__ uint32_t keys(int stage) const {
    return first + kQueryStages * Shape::kQueryBytes + 2 * stage * Shape::kTileBytes;
  }
  __device__ __forceinline__ uint32_t values(int stage) const {
    return keys(stage) + Shape::kTileBytes;
  }
};

// One warp.
template <int kDim, int kGroups, bool kUnified>
struct Producer {
  using Shape = PrefillShape<kDim, kGroups>;
  const PrefillArgs& a;
  const PrefillOrder& order;
  const Maps& maps;
  const Memory<kDim, kGroups>& memory;
  // The first round waits for nobody.
  RingPlace<Shape::kStages> keys{0, 1}, values{0, 1};
  RingPlace<kQueryStages> queries{0, 1};
  RingPlace<kWorkStages> work{};

  __device__ __forceinline__ void wait_queries() const {
    wait_barrier(shared32(&memory.shared.queries_empty[queries.stage]), queries.parity);
  }
  // Without queries.
  __device__ __forceinline__ void tell(PrefillWork::Kind kind, int lane) {
    wait_queries();
    if (lane == 0) {
      memory.shared.work[work.stage].kind = kind;
      arrive(shared32(&memory.shared.queries_full[queries.stage]));
    }
    work.advance();
    queries.advance();
  }

  // Row of the map at which this lane's page begins. Pages that nobody sees are zeros: rows behind
  // the last.
  __device__ __forceinline__ int row_of(const PrefillPlace& p, int first, int lane) const {
    const int position = first + lane / Shape::kSlices * kKvBlockTokens;
    if (lane >= kPages * Shape::kSlices || position >= p.end ||
        position + kKvBlockTokens <= p.begin)
      return maps.rows;
    return (p.table[position / kKvBlockTokens] * a.kv_heads + p.kv_head) * kKvBlockTokens;
  }
  __device__ __forceinline__ void copy(const CUtensorMap& map, int row, uint32_t to, uint64_t* full,
                                       int lane) const {
    const uint32_t barrier = shared32(full);
    if (lane == 0) arrive_and_expect(barrier, Shape::kTileBytes);
    __syncwarp();
    if (lane < kPages * Shape::kSlices) {
      const int page = lane / Shape::kSlices, slice = lane % Shape::kSlices;
      copy_box(to + slice * Shape::kSliceBytes + page * kKvBlockTokens * 128, map, slice * 64, row,
               barrier);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void copy_keys(int row, int lane) {
    wait_barrier(shared32(&memory.shared.keys_empty[keys.stage]), keys.parity);
    copy(maps.k, row, memory.keys(keys.stage), &memory.shared.keys_full[keys.stage], lane);
    keys.advance();
  }
  __device__ __forceinline__ void copy_values(int row, int lane) {
    wait_barrier(shared32(&memory.shared.values_empty[values.stage]), values.parity);
    copy(maps.v, row, memory.values(values.stage), &memory.shared.values_full[values.stage], lane);
    values.advance();
  }

  __device__ __forceinline__ void produce(const PrefillPlace& p, int piece, bool unified,
                                          int lane) {
    const int tokens = (p.end + kKvBlockTokens - 1) / kKvBlockTokens * kKvBlockTokens;
    const int tiles = (tokens - p.begin + kTokens - 1) / kTokens;
    int row = row_of(p, tokens - kTokens, lane);
    int next_row = row_of(p, tokens - 2 * kTokens, lane);
    wait_queries();
    if (lane == 0) {
      memory.shared.work[work.stage] = {unified ? PrefillWork::kUnified : PrefillWork::kOnline,
                                        piece,
                                        p.first_row,
                                        p.rows,
                                        p.position,
                                        p.end,
                                        tokens,
                                        tiles,
                                        p.head,
                                        0};
      const uint32_t full = shared32(&memory.shared.queries_full[queries.stage]);
      arrive_and_expect(full, Shape::kQueryBytes);
#pragma unroll
      for (int slice = 0; slice < Shape::kSlices; ++slice) {
        copy_box(memory.queries(queries.stage) + slice * Shape::kQuerySliceBytes, maps.q,
                 p.head * kDim + slice * 64, static_cast<int>(p.first_row), full);
      }
    }
    __syncwarp();
    work.advance();
    queries.advance();
    copy_keys(row, lane);
    for (int tile = 1; tile < tiles; ++tile) {
      const int after = row_of(p, tokens - (tile + 2) * kTokens, lane);
      copy_keys(next_row, lane);
      copy_values(row, lane);
      row = next_row;
      next_row = after;
    }
    copy_values(row, lane);
  }

  // All pieces, then those that have failed.
  __device__ __forceinline__ void run(int lane) {
    int piece = static_cast<int>(blockIdx.x);
    int repeated = -1, failures = 0;
    for (;;) {
      if (repeated < 0 && piece >= order.pieces) {
        if (lane == 0) order.leave();
        if (!kUnified) break;
        const RingPlace<kQueryStages> at = queries;
        tell(PrefillWork::kFlush, lane);
        wait_barrier(shared32(&memory.shared.queries_empty[at.stage]), at.parity ^ 1);
        failures = memory.shared.failures;
        repeated = 0;
      }
      if (kUnified && repeated >= 0) {
        if (repeated == failures) break;
        piece = memory.shared.failed[repeated++];
      }
      int next = 0;
      if (lane == 0 && repeated < 0) next = order.next(piece);
      const bool unified = kUnified && repeated < 0 &&
                           *const_cast<volatile int*>(&memory.shared.failures) < kManyFailures;
      PrefillPlace p;
      if (order.find(a, Shape::kRows, piece, p)) produce(p, piece, unified, lane);
      piece = __shfl_sync(kAllLanes, next, 0);
    }
    tell(PrefillWork::kStop, lane);
  }
};

// One warpgroup.
template <int kDim, int kGroups, bool kOrdered>
struct Consumer {
  using Shape = PrefillShape<kDim, kGroups>;
  static constexpr int kOutputs = kDim / 2;
  const PrefillArgs& a;
  const Memory<kDim, kGroups>& memory;
  float reference;  // of the unified maximum
  bool chained;     // pieces overlap
  int group, warp, lane;
  RingPlace<Shape::kStages> keys{}, values{};
  RingPlace<kQueryStages> queries{};
  RingPlace<kWorkStages> work{};

  __device__ __forceinline__ void release(uint64_t& barrier) const {
    __syncwarp();
    if (lane == 0) arrive(shared32(&barrier));
  }
  // Turns at the tensor cores, in the order of the warpgroups.
  __device__ __forceinline__ void take_turn() const {
    if constexpr (kOrdered) asm volatile("bar.sync %0, 256;" ::"r"(8 + group) : "memory");
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (kOrdered) {
      asm volatile("bar.arrive %0, 256;" ::"r"(8 + (group + 1 == kGroups ? 0 : group + 1))
                   : "memory");
    }
  }
  // What this warpgroup has written to shared memory is there for its products.
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
    wait_barrier(shared32(&memory.shared.queries_full[queries.stage]), queries.parity);
  }
  __device__ __forceinline__ void wait_keys() const {
    wait_barrier(shared32(&memory.shared.keys_full[keys.stage]), keys.parity);
  }
  __device__ __forceinline__ void wait_values(const RingPlace<Shape::kStages>& at) const {
    wait_barrier(shared32(&memory.shared.values_full[at.stage]), at.parity);
  }
  __device__ __forceinline__ void release_keys() {
    release(memory.shared.keys_empty[keys.stage]);
    keys.advance();
  }
  __device__ __forceinline__ void release_values() {
    release(memory.shared.values_empty[values.stage]);
    values.advance();
  }

  // Queries of BF16 become F16 where they are.
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
  // What nobody has written of the last page may be anything, NaN too: zeros instead. Every
  // warpgroup does it for itself.
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
    // Of the upper row, relative to this lane's first token.
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

  // Scores become exponents. Returns whether outputs must be scaled by `rescale`.
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
          // By row, whatever the others of the warp need.
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
    sum[0] += added[0];  // of this lane's tokens
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

  // Sums are of a lane's tokens; the outputs become zeros.
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
      // An infinite exponent leaves no output finite.
      if (kUnified && row < w.rows) fails |= !(all >= kSmallestSum && isfinite(out[2 * h]));
      store(w, row, h, all > 0 ? __frcp_rn(all) : 0, out);
    }
    if (kUnified && __any_sync(kAllLanes, fails) && lane == 0 && atomicExch(&w.failed, 1) == 0)
      memory.shared.failed[atomicAdd(&memory.shared.failures, 1)] = w.piece;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out[i] = 0;
  }

  // The piece at hand and all behind it that are of the same kind. The last tile's output of one is
  // computed together with the first scores of the next.
  template <bool kUnified>
  __device__ __forceinline__ void attend() {
    constexpr PrefillWork::Kind kKind = kUnified ? PrefillWork::kUnified : PrefillWork::kOnline;
    PrefillWork* w = &memory.shared.work[work.stage];
    float s[64], out[kOutputs], maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, rescale[2];
    uint32_t exponents[kTokens / 16][4];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out[i] = 0;
    int left = w->tiles - 1;  // that have not been scored
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
      // Here, since the compiler does not move exponents across a loop: they must not come behind
      // the next wait.
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
    finish<kUnified>(*w, sum, out);
  }

  // The four lanes of a row exchange pieces of 4 bytes for such of 16.
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
        x[i] = pack_output2(a, out[4 * (j + i) + 2 * h] * inverse,
                            out[4 * (j + i) + 2 * h + 1] * inverse);
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
    if (group == 0) take_turn();  // the one that is left
  }
};

#endif

template <int kDim, int kGroups, bool kUnified, bool kOrdered>
__global__ __launch_bounds__(PrefillShape<kDim, kGroups>::kThreads, 1) void attention_wgmma_kernel(
    const __grid_constant__ PrefillArgs a, const __grid_constant__ PrefillOrder order,
    const __grid_constant__ Maps maps, float reference, bool chained) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = PrefillShape<kDim, kGroups>;
  extern __shared__ std::byte shared_bytes[];
  __shared__ Shared<Shape::kStages> shared;
  let_next_start();
  const uint32_t first = (shared32(shared_bytes) + kAlignment - 1) / kAlignment * kAlignment;
  const Memory<kDim, kGroups> memory{shared, first,
                                     shared_bytes + (first - shared32(shared_bytes))};
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  if (thread == 0) {
    constexpr int kWarps = Shape::kConsumers / kWarpSize;
    for (int s = 0; s < kQueryStages; ++s) {
      init_barrier(shared32(&shared.queries_full[s]), 1);
      init_barrier(shared32(&shared.queries_empty[s]), kWarps);
    }
    for (int s = 0; s < Shape::kStages; ++s) {
      init_barrier(shared32(&shared.keys_full[s]), 1);
      init_barrier(shared32(&shared.values_full[s]), 1);
      init_barrier(shared32(&shared.keys_empty[s]), kWarps);
      init_barrier(shared32(&shared.values_empty[s]), kWarps);
    }
    shared.failures = 0;
    publish_barriers();
  }
  __syncthreads();
  wait_for_previous();
  if (thread >= Shape::kConsumers) {
    give_registers<Shape::kProducerRegisters>();
    if (warp == Shape::kConsumers / kWarpSize)
      Producer<kDim, kGroups, kUnified>{a, order, maps, memory}.run(lane);
  } else {
    take_registers<Shape::kConsumerRegisters>();
    Consumer<kDim, kGroups, kOrdered>{a, memory, reference, chained, warp / 4, warp % 4, lane}
        .template run<kUnified>();
  }
#endif
}

// KV of a section of kv heads, so that it stays in L2 while the section is worked on.
constexpr int64_t kSectionBytes = int64_t{32} << 20;

template <int kDim, int kGroups, bool kUnified, bool kOrdered>
bool try_launch(const AttentionCall& call, const PrefillArgs& a, const UnifiedMax& unified,
                int max_rows, int32_t* counters, const PrefillVariant& variant,
                cudaStream_t stream) {
  using Shape = PrefillShape<kDim, kGroups>;
  const auto kernel = attention_wgmma_kernel<kDim, kGroups, kUnified, kOrdered>;
  // Only code for sm_90a has these instructions.
  cudaFuncAttributes attributes = {};
  SPW_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  if (attributes.binaryVersion != 90) return false;
  const KvLayerView& kv = call.kv;
  const int64_t kv_rows = kv.blocks * kv.kv_heads * kKvBlockTokens;
  const int64_t row_tiles = (max_rows + Shape::kRows - 1) / Shape::kRows;
  const int64_t pieces = row_tiles * call.params.heads * a.batch.sequences;
  if (kv_rows >= INT32_MAX || pieces >= INT32_MAX / 2 || call.q.rows >= INT32_MAX) return false;

  const auto kv_map = [&](const std::byte* data) {
    return make_tensor_map({DType::kF16, data, kv_rows, kDim, kDim, kKvBlockTokens});
  };
  const Maps maps{
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
         stream, a, order, maps, (unified.phi + unified.high) * kLog2E - kTopExponent,
         variant.chained);
  return true;
}

template <int kDim, int kGroups>
bool try_launch_dim(const AttentionCall& call, const PrefillArgs& a, const UnifiedMax& unified,
                    int max_rows, int32_t* counters, const PrefillVariant& variant,
                    cudaStream_t stream) {
  const auto launch_with = [&]<bool kUnified, bool kOrdered>() {
    return try_launch<kDim, kGroups, kUnified, kOrdered>(call, a, unified, max_rows, counters,
                                                         variant, stream);
  };
  if (unified.enabled) {
    return variant.ordered ? launch_with.template operator()<true, true>()
                           : launch_with.template operator()<true, false>();
  }
  return variant.ordered ? launch_with.template operator()<false, true>()
                         : launch_with.template operator()<false, false>();
}

}  // namespace

bool try_attention_wgmma(const AttentionCall& call, const PrefillArgs& a, const UnifiedMax& unified,
                         int max_rows, int32_t* counters, const PrefillVariant& variant,
                         cudaStream_t stream) {
  if (call.kv.type != KvType::kF16 || !a.whole_vectors || !has_tensor_maps()) return false;
  if (call.kv.head_dim == 128)
    return try_launch_dim<128, 2>(call, a, unified, max_rows, counters, variant, stream);
  if (call.kv.head_dim == 64 && variant.other_rows)
    return try_launch_dim<64, 2>(call, a, unified, max_rows, counters, variant, stream);
  if (call.kv.head_dim == 64)
    return try_launch_dim<64, 3>(call, a, unified, max_rows, counters, variant, stream);
  return false;
}

}  // namespace spillway::cuda
