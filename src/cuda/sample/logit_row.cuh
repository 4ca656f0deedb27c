// SPDX-License-Identifier: Apache-2.0
// Functions on a row of logits, one thread block per row: find its best token, reduce it to its
// likeliest tokens, and iterate over those in the order of their ids.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace spillway::cuda {

constexpr int kRowThreads = 1024;
constexpr int kRowWarps = kRowThreads / 32;
constexpr int kRowDigits = 256;

// A probability as a fixed-point number, so that sums do not depend on the order of addition.
using Mass = unsigned long long;
// More than any sum, even after sums have been subtracted from it.
constexpr Mass kEverything = Mass{1} << 63;

struct RowShared {
  Mass mass[kRowDigits];
  uint32_t count[kRowDigits];
  float warp_value[kRowWarps];
  int32_t warp_index[kRowWarps];
  Mass warp_mass[kRowWarps];
  float top;
  int32_t best;
  uint32_t key;
  Mass left;  // what the lower digits must still provide: a number of values, or their mass
  Mass total;
};

// Preserves the order: a < b <=> ordered_bits(a) < ordered_bits(b), for numbers; the result is
// never 0.
__device__ __forceinline__ uint32_t ordered_bits(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// Calls f(id, logit) for this thread's share of a row, by rising ids. Each thread has kAhead loads
// of 16 bytes in flight: one after the other they would take a microsecond each. Where a load would
// pass the end, f is called with minus infinity, which has no effect.
template <int kAhead, class F>
__device__ __forceinline__ void for_each_logit(const float* logits, int vocab, F&& f) {
  const int thread = threadIdx.x;
  const int misplaced = static_cast<int>(reinterpret_cast<uintptr_t>(logits) / sizeof(float) % 4);
  const int head = min(vocab, (4 - misplaced) % 4);
  const int fours = (vocab - head) / 4;
  const float4* const from = reinterpret_cast<const float4*>(logits + head);
  if (thread < head) f(thread, logits[thread]);
  for (int first = thread; first < fours; first += kAhead * kRowThreads) {
    float4 x[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      x[a] = first + a * kRowThreads < fours
                 ? from[first + a * kRowThreads]
                 : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int id = head + 4 * (first + a * kRowThreads);
      f(id, x[a].x), f(id + 1, x[a].y), f(id + 2, x[a].z), f(id + 3, x[a].w);
    }
  }
  const int last = head + 4 * fours + thread;
  if (last < vocab) f(last, logits[last]);
}

// Sets s.top and s.best to the row's largest logit and its token; best is -1 in a row with NaN or
// infinity.
__device__ inline void find_best(const float* logits, int vocab, RowShared& s) {
  float best = -INFINITY;
  int index = -1;
  bool wrong = false;
  for_each_logit<8>(logits, vocab, [&](int i, float x) {
    if (x <= best) return;  // false for NaN: one comparison rejects nearly all logits
    if (x < INFINITY) {
      best = x;
      index = i;
    } else {
      wrong = true;
    }
  });
  // Reduces over a warp; all lanes get the result.
  const auto take_warps_best = [&] {
    for (int offset = 16; offset > 0; offset /= 2) {
      const float x = __shfl_xor_sync(0xffffffffU, best, offset);
      const int i = __shfl_xor_sync(0xffffffffU, index, offset);
      if (i >= 0 && (index < 0 || x > best || (x == best && i < index))) {
        best = x;
        index = i;
      }
    }
  };
  take_warps_best();
  if (threadIdx.x % 32 == 0) {
    s.warp_value[threadIdx.x / 32] = best;
    s.warp_index[threadIdx.x / 32] = index;
  }
  const bool all_numbers = __syncthreads_or(wrong) == 0;
  static_assert(kRowWarps == 32);
  if (threadIdx.x < kRowWarps) {
    best = s.warp_value[threadIdx.x];
    index = s.warp_index[threadIdx.x];
    take_warps_best();
  }
  if (threadIdx.x == 0) {
    s.top = best;
    s.best = all_numbers ? index : -1;
  }
  __syncthreads();
}

// The tokens that are kept: every key above `key`, and the first `ties` tokens with that key.
struct Kept {
  uint32_t key = 1;
  Mass ties = ~Mass{0};
};

// Reduces `kept` to the `wanted` likeliest tokens, or to the likeliest ones that have this mass;
// keeps fewer if there are not so many.
template <bool kByMass, class Row>
__device__ Kept keep_likeliest(const Row& row, const Kept& kept, Mass wanted, RowShared& s) {
  if (threadIdx.x == 0) {
    s.key = 0;
    s.left = wanted;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < kRowDigits; i += kRowThreads) {
      s.mass[i] = 0;
      s.count[i] = 0;
    }
    __syncthreads();
    const uint32_t prefix = s.key;
    const uint32_t mask = shift == 24 ? 0 : ~0U << (shift + 8);
    for_each_logit<4>(row.logits, row.vocab, [&](int, float x) {
      const uint32_t key = row.key_of(x);
      if (key < kept.key || (key & mask) != prefix) return;
      const uint32_t digit = key >> shift & 0xffU;
      atomicAdd(&s.count[digit], 1U);
      if constexpr (kByMass) atomicAdd(&s.mass[digit], row.mass_of(x));
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = kRowDigits - 1;
      int lowest = digit;  // the lowest digit with any value
      for (; digit >= 0; --digit) {
        if (s.count[digit] == 0) continue;
        lowest = digit;
        const Mass here = kByMass ? s.mass[digit] : s.count[digit];
        if (here >= s.left) break;
        s.left -= here;
      }
      // If the sum falls short, by rounding or because there are too few tokens, everything is
      // kept, also in the lower digits.
      if (digit < 0) {
        digit = lowest;
        s.left = kEverything;
      }
      s.key |= static_cast<uint32_t>(digit) << shift;
      if (shift == 0 && kByMass) {
        const Mass count = s.count[s.key & 0xffU];
        const Mass each = max(s.mass[s.key & 0xffU] / max(count, Mass{1}), Mass{1});
        s.left = (s.left + each - 1) / each;
      }
    }
    __syncthreads();
  }
  Kept cut{s.key, max(s.left, Mass{1})};
  if (cut.key == kept.key) cut.ties = min(cut.ties, kept.ties);
  __syncthreads();  // s may be used again
  return cut;
}

// Returns the sum over the threads before this one, and sets s.total to the sum over all.
__device__ inline Mass exclusive_sum(Mass value, RowShared& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Mass sum = value;
  for (int offset = 1; offset < 32; offset *= 2) {
    const Mass before = __shfl_up_sync(0xffffffffU, sum, offset);
    if (lane >= offset) sum += before;
  }
  if (lane == 31) s.warp_mass[warp] = sum;
  __syncthreads();
  Mass before = 0, total = 0;
  for (int w = 0; w < kRowWarps; ++w) {
    if (w < warp) before += s.warp_mass[w];
    total += s.warp_mass[w];
  }
  if (threadIdx.x == 0) s.total = total;
  __syncthreads();
  return before + sum - value;
}

// Returns the sum over all threads.
__device__ inline Mass sum_of(Mass value, RowShared& s) {
  exclusive_sum(value, s);
  const Mass total = s.total;
  __syncthreads();  // s may be used again
  return total;
}

// A thread's range of ids, and how many tokens with the cut's key come before it.
struct KeptRun {
  int begin;
  int end;
  Mass ties_before;

  // Calls f(id) for the tokens that are kept, by rising ids.
  template <class Row, class F>
  __device__ __forceinline__ void for_each(const Row& row, const Kept& kept, F&& f) const {
    Mass tie = ties_before;
    for (int i = begin; i < end; ++i) {
      const uint32_t key = row.key_of(row.logits[i]);
      if (key > kept.key || (key == kept.key && tie++ < kept.ties)) f(i);
    }
  }
};

template <class Row>
__device__ KeptRun kept_run(const Row& row, const Kept& kept, RowShared& s) {
  const int length = (row.vocab + kRowThreads - 1) / kRowThreads;
  const int begin = min(row.vocab, static_cast<int>(threadIdx.x) * length);
  const int end = min(row.vocab, begin + length);
  Mass ties = 0;
  for (int i = begin; i < end; ++i) ties += row.key_of(row.logits[i]) == kept.key;
  return {begin, end, exclusive_sum(ties, s)};
}

}  // namespace spillway::cuda
