// SPDX-License-Identifier: Apache-2.0
// One block per row. What sorting does on the host is done here by selection: the smallest logit
// that is kept is found digit by digit of its bits, first by count (top-k), then by probability
// mass (top-p); the draw walks the kept tokens in the order of their ids, as the host's does.
// Masses are fixed-point numbers: their sums do not depend on the order of addition.
#include "cuda/kernel/launch.cuh"
#include "cuda/sample/sample.h"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kDigits = 256;
constexpr float kLeast = -80;                 // a probability of e^-80 is never drawn
constexpr float kMassOne = 1099511627776.0F;  // 2^40: a million of the likeliest fit 64 bits

using Mass = unsigned long long;

struct Shared {
  SampleRowArgs args;
  Mass mass[kDigits];
  uint32_t count[kDigits];
  float warp_value[kWarps];
  int32_t warp_index[kWarps];
  Mass warp_mass[kWarps];
  float top;
  int32_t best;
  uint32_t key;
  Mass left;  // what is still wanted of the digits below: values, or their mass
  Mass total;
  int32_t drawn;
};

// One row as the block sees it.
struct Row {
  const float* logits;
  int vocab;
  float top;
  float inverse_temperature;

  // Order-preserving: a < b <=> key(a) < key(b). What is never drawn has no key.
  __device__ uint32_t key_of(float x) const {
    if (!(scaled(x) > kLeast)) return 0;
    const uint32_t bits = __float_as_uint(x);
    return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  }
  __device__ float scaled(float x) const { return (x - top) * inverse_temperature; }
  __device__ Mass mass_of(float x) const { return static_cast<Mass>(expf(scaled(x)) * kMassOne); }
  __device__ uint32_t key(int i) const { return key_of(logits[i]); }
  __device__ Mass mass(int i) const { return mass_of(logits[i]); }
};

// Calls f(id, logit) for the block's share of a row, in every thread by rising ids. Each thread has
// kAhead loads of 16 bytes on their way: one after the other they would take a microsecond each.
// Where a load would pass the end f is called with minus infinity, which counts for nothing.
template <int kAhead, class F>
__device__ __forceinline__ void for_each_logit(const float* logits, int vocab, F&& f) {
  const int thread = threadIdx.x;
  const int misplaced = static_cast<int>(reinterpret_cast<uintptr_t>(logits) / sizeof(float) % 4);
  const int head = min(vocab, (4 - misplaced) % 4);
  const int fours = (vocab - head) / 4;
  const float4* const from = reinterpret_cast<const float4*>(logits + head);
  if (thread < head) f(thread, logits[thread]);
  for (int first = thread; first < fours; first += kAhead * kThreads) {
    float4 x[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      x[a] = first + a * kThreads < fours ? from[first + a * kThreads]
                                          : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int id = head + 4 * (first + a * kThreads);
      f(id, x[a].x), f(id + 1, x[a].y), f(id + 2, x[a].z), f(id + 3, x[a].w);
    }
  }
  const int last = head + 4 * fours + thread;
  if (last < vocab) f(last, logits[last]);
}

// None (-1) in a row with NaN or infinity.
__device__ void find_best(const float* logits, int vocab, Shared& s) {
  float best = -INFINITY;
  int index = -1;
  bool wrong = false;
  for_each_logit<8>(logits, vocab, [&](int i, float x) {
    if (x <= best) return;  // not NaN: one comparison for what nearly all logits are
    if (x < INFINITY) {
      best = x;
      index = i;
    } else {
      wrong = true;
    }
  });
  // Of a warp's lanes, all of them get it.
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
  static_assert(kWarps == 32);
  if (threadIdx.x < kWarps) {
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

// Cuts `kept` down to the likeliest tokens that are `wanted` many, or have that mass.
template <bool kByMass>
__device__ Kept keep_likeliest(const Row& row, const Kept& kept, Mass wanted, Shared& s) {
  if (threadIdx.x == 0) {
    s.key = 0;
    s.left = wanted;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < kDigits; i += kThreads) {
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
      if (kByMass) atomicAdd(&s.mass[digit], row.mass_of(x));
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = kDigits - 1;
      int lowest = digit;  // that has any value
      for (; digit >= 0; --digit) {
        if (s.count[digit] == 0) continue;
        lowest = digit;
        const Mass here = kByMass ? s.mass[digit] : s.count[digit];
        if (here >= s.left) break;
        s.left -= here;
      }
      // Short of it by rounding: all that there is.
      s.key |= static_cast<uint32_t>(digit < 0 ? lowest : digit) << shift;
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

// The sum over the threads before this one; the sum over all goes to s.total.
__device__ Mass exclusive_sum(Mass value, Shared& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Mass sum = value;
  for (int offset = 1; offset < 32; offset *= 2) {
    const Mass before = __shfl_up_sync(0xffffffffU, sum, offset);
    if (lane >= offset) sum += before;
  }
  if (lane == 31) s.warp_mass[warp] = sum;
  __syncthreads();
  Mass before = 0, total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += s.warp_mass[w];
    total += s.warp_mass[w];
  }
  if (threadIdx.x == 0) s.total = total;
  __syncthreads();
  return before + sum - value;
}

// The sum over all threads.
__device__ Mass sum_of(Mass value, Shared& s) {
  exclusive_sum(value, s);
  const Mass total = s.total;
  __syncthreads();  // s may be used again
  return total;
}

// Each thread has a run of ids.
__device__ int draw(const Row& row, const Kept& kept, double uniform, Shared& s) {
  const int run = (row.vocab + kThreads - 1) / kThreads;
  const int begin = min(row.vocab, static_cast<int>(threadIdx.x) * run);
  const int end = min(row.vocab, begin + run);
  Mass ties = 0;
  for (int i = begin; i < end; ++i) ties += row.key(i) == kept.key;
  const Mass ties_before = exclusive_sum(ties, s);

  const auto for_kept = [&](auto&& f) {
    Mass tie = ties_before;
    for (int i = begin; i < end; ++i) {
      const uint32_t key = row.key(i);
      if (key > kept.key || (key == kept.key && tie++ < kept.ties)) f(i);
    }
  };
  Mass mass = 0;
  for_kept([&](int i) { mass += row.mass(i); });
  const Mass before = exclusive_sum(mass, s);
  if (threadIdx.x == 0) s.drawn = -1;
  __syncthreads();
  const Mass at = static_cast<Mass>(uniform * static_cast<double>(s.total));
  if (at >= before && at < before + mass) {
    Mass sum = before;
    int drawn = -1;
    for_kept([&](int i) {
      sum += row.mass(i);
      if (drawn < 0 && at < sum) drawn = i;
    });
    s.drawn = drawn;
  }
  __syncthreads();
  return s.drawn < 0 ? s.best : s.drawn;
}

// A thread's word of the row's arguments, which the block reads in one piece.
class ArgumentWord {
 public:
  __device__ explicit ArgumentWord(const SampleRowArgs* args) {
    if (threadIdx.x < kWords) {
      word_ = __ldg(reinterpret_cast<const uint32_t*>(args) + threadIdx.x);
    }
  }
  // All threads call it, once.
  __device__ void share(Shared& s) const {
    if (threadIdx.x < kWords) reinterpret_cast<uint32_t*>(&s.args)[threadIdx.x] = word_;
    __syncthreads();
  }

 private:
  static constexpr int kWords = sizeof(SampleRowArgs) / sizeof(uint32_t);
  static_assert(kWords <= 32);
  uint32_t word_ = 0;
};

__device__ void adjust(float* logits, const SampleRowArgs& args,
                       const LogitAdjustment* adjustments) {
  static_assert(sizeof(LogitAdjustment) == sizeof(uint4));
  const auto* const from = reinterpret_cast<const uint4*>(adjustments + args.first_adjustment);
  for (int i = threadIdx.x; i < args.adjustments; i += kThreads) {
    const uint4 words = __ldg(from + i);
    const LogitAdjustment a{static_cast<int32_t>(words.x), __uint_as_float(words.y),
                            __uint_as_float(words.z), __uint_as_float(words.w)};
    float x = logits[a.id] + a.bias;
    x = x > 0 ? x / a.repetition : x * a.repetition;
    logits[a.id] = x - a.penalty;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads, 1)
    sample_kernel(float* logits, int64_t stride, int vocab, const SampleRowArgs* rows,
                  const LogitAdjustment* adjustments, int32_t* ids) {
  __shared__ Shared s;
  let_next_start();
  wait_for_previous();
  // Arguments may lie behind a bus: the block asks once, and waits where it needs them.
  const ArgumentWord word(rows + blockIdx.x);
  float* const at = logits + blockIdx.x * stride;
  if (adjustments != nullptr) {
    word.share(s);
    adjust(at, s.args, adjustments);
  }
  find_best(at, vocab, s);
  if (adjustments == nullptr) word.share(s);
  const SampleRowArgs args = s.args;
  int id = s.best;
  if (id >= 0 && args.temperature > 0) {
    const Row row{at, vocab, s.top, 1 / args.temperature};
    Kept kept;
    if (args.top_k > 0 && args.top_k < vocab) {
      kept = keep_likeliest<false>(row, kept, static_cast<Mass>(args.top_k), s);
    }
    if (args.top_p < 1) {
      // The mass of what is kept so far.
      Mass mass = 0, tied = 0, count = 0;
      for_each_logit<4>(at, vocab, [&](int, float x) {
        const uint32_t key = row.key_of(x);
        if (key < kept.key) return;
        (key == kept.key ? tied : mass) += row.mass_of(x);
        count += key == kept.key;
      });
      const Mass above = sum_of(mass, s);
      tied = sum_of(tied, s);
      count = sum_of(count, s);
      if (count > kept.ties) tied = tied / count * kept.ties;
      const double wanted = static_cast<double>(args.top_p) * static_cast<double>(above + tied);
      kept = keep_likeliest<true>(row, kept, max(static_cast<Mass>(ceil(wanted)), Mass{1}), s);
    }
    if (args.min_p > 0) {
      // Everything from e^least of the most likely one's probability on.
      const float least = s.top + logf(args.min_p) * args.temperature;
      const uint32_t bits = __float_as_uint(least);
      const uint32_t key = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
      if (key > kept.key) kept = {key, ~Mass{0}};
    }
    id = draw(row, kept, args.uniform, s);
  }
  if (threadIdx.x == 0) ids[blockIdx.x] = id;
}

// Of all threads, in an order that does not depend on who comes when; thread 0 gets it.
__device__ double block_sum(double value, Shared& s) {
  __shared__ double by_warp[kWarps];
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  if (threadIdx.x % 32 == 0) by_warp[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0) {
    for (int w = 0; w < kWarps; ++w) sum += by_warp[w];
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads, 1)
    score_kernel(const float* logits, int64_t stride, int vocab, const int32_t* ids,
                 TokenScore* scores) {
  __shared__ Shared s;
  let_next_start();
  wait_for_previous();
  const float* const row = logits + blockIdx.x * stride;
  const int32_t id = threadIdx.x == 0 ? ids[blockIdx.x] : 0;
  find_best(row, vocab, s);
  const float top = s.top;
  float sum = 0;
  for_each_logit<8>(row, vocab, [&](int, float x) { sum += expf(x - top); });
  const double all = block_sum(sum, s);
  if (threadIdx.x != 0) return;
  const bool usable = s.best >= 0;
  const double logprob = static_cast<double>(row[id]) - top - log(all);
  scores[blockIdx.x] = {usable ? static_cast<float>(logprob) : NAN, s.best};
}

}  // namespace

void score(const Activations& logits, const int32_t* ids, TokenScore* scores, cudaStream_t stream) {
  SPW_ASSERT(logits.dtype == DType::kF32);
  if (logits.rows == 0) return;
  launch(score_kernel, dim3(static_cast<unsigned>(logits.rows)), kThreads, 0, stream,
         reinterpret_cast<const float*>(logits.data), logits.stride, static_cast<int>(logits.cols),
         ids, scores);
}

void sample(const Activations& logits, const SampleRowArgs* rows,
            const LogitAdjustment* adjustments, int32_t* ids, cudaStream_t stream) {
  SPW_ASSERT(logits.dtype == DType::kF32);
  if (logits.rows == 0) return;
  launch(sample_kernel, dim3(static_cast<unsigned>(logits.rows)), kThreads, 0, stream,
         reinterpret_cast<float*>(logits.data), logits.stride, static_cast<int>(logits.cols), rows,
         adjustments, ids);
}

}  // namespace spillway::cuda
