// SPDX-License-Identifier: Apache-2.0
// One thread block samples a row. The host sorts; here the smallest logit that is kept is selected
// digit by digit of its bits, first by count (top-k), then by probability mass (top-p). The final
// choice goes over the kept tokens in the order of their ids, as on the host.
#include "cuda/kernel/launch.cuh"
#include "cuda/sample/logit_row.cuh"
#include "cuda/sample/sample.h"

namespace spillway::cuda {
namespace {

constexpr float kLeast = -80;                 // a probability of e^-80 is never sampled
constexpr float kMassOne = 1099511627776.0F;  // 2^40: a million likely tokens' masses fit 63 bits

struct Shared : RowShared {
  SampleRowArgs args;
  int32_t drawn;
};

// A row as the thread block sees it.
struct Row {
  const float* logits;
  int vocab;
  float top;
  float inverse_temperature;

  // Tokens that are never sampled have key 0.
  __device__ uint32_t key_of(float x) const { return scaled(x) > kLeast ? ordered_bits(x) : 0; }
  __device__ float scaled(float x) const { return (x - top) * inverse_temperature; }
  __device__ Mass mass_of(float x) const { return static_cast<Mass>(expf(scaled(x)) * kMassOne); }
  __device__ Mass mass(int i) const { return mass_of(logits[i]); }
};

__device__ int draw(const Row& row, const Kept& kept, double uniform, Shared& s) {
  const KeptRun run = kept_run(row, kept, s);
  Mass mass = 0;
  run.for_each(row, kept, [&](int i) { mass += row.mass(i); });
  const Mass before = exclusive_sum(mass, s);
  if (threadIdx.x == 0) s.drawn = -1;
  __syncthreads();
  const Mass at = static_cast<Mass>(uniform * static_cast<double>(s.total));
  if (at >= before && at < before + mass) {
    Mass sum = before;
    int drawn = -1;
    run.for_each(row, kept, [&](int i) {
      sum += row.mass(i);
      if (drawn < 0 && at < sum) drawn = i;
    });
    s.drawn = drawn;
  }
  __syncthreads();
  return s.drawn < 0 ? s.best : s.drawn;
}

// A thread's word of the row's arguments, which the thread block reads in one access.
class ArgumentWord {
 public:
  __device__ explicit ArgumentWord(const SampleRowArgs* args) {
    if (threadIdx.x < kWords) {
      word_ = __ldg(reinterpret_cast<const uint32_t*>(args) + threadIdx.x);
    }
  }
  // Stores the arguments in shared memory. All threads call it, once.
  __device__ void share(Shared& s) const {
    if (threadIdx.x < kWords) reinterpret_cast<uint32_t*>(&s.args)[threadIdx.x] = word_;
    __syncthreads();
  }

 private:
  static constexpr int kWords = sizeof(SampleRowArgs) / sizeof(uint32_t);
  static_assert(kWords <= 32);
  uint32_t word_ = 0;
};

__device__ void adjust(float* logits, const SampleRowArgs& args, const LogitAdjustment* adjustments,
                       ReplacedLogit* replaced) {
  static_assert(sizeof(LogitAdjustment) == sizeof(uint4));
  const auto* const from = reinterpret_cast<const uint4*>(adjustments + args.first_adjustment);
  for (int i = threadIdx.x; i < args.adjustments; i += kRowThreads) {
    const uint4 words = __ldg(from + i);
    const LogitAdjustment a{static_cast<int32_t>(words.x), __uint_as_float(words.y),
                            __uint_as_float(words.z), __uint_as_float(words.w)};
    if (replaced != nullptr) replaced[args.first_adjustment + i] = {a.id, logits[a.id]};
    float x = logits[a.id] + a.bias;
    x = x > 0 ? x / a.repetition : x * a.repetition;
    logits[a.id] = x - a.penalty;
  }
  __syncthreads();
}

// Restores the logits that each thread has replaced. No thread reads the row any more.
__device__ void put_back(float* logits, const SampleRowArgs& args, const ReplacedLogit* replaced) {
  __syncthreads();
  for (int i = threadIdx.x; i < args.adjustments; i += kRowThreads) {
    const ReplacedLogit& r = replaced[args.first_adjustment + i];
    logits[r.id] = r.logit;
  }
}

__global__ void __launch_bounds__(kRowThreads, 1)
    sample_kernel(float* logits, int64_t stride, int vocab, const SampleRowArgs* rows,
                  const LogitAdjustment* adjustments, ReplacedLogit* replaced, int32_t* ids) {
  __shared__ Shared s;
  launch_dependents();
  wait_for_previous();
  // The arguments may lie across a bus: they are read once, and waited for where they are needed.
  const ArgumentWord word(rows + blockIdx.x);
  float* const at = logits + blockIdx.x * stride;
  if (adjustments != nullptr) {
    word.share(s);
    adjust(at, s.args, adjustments, replaced);
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
      // The probability mass that is kept so far.
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
      // Keeps the tokens with at least min_p times the probability of the most likely one.
      const float least = s.top + logf(args.min_p) * args.temperature;
      const uint32_t key = ordered_bits(least);
      if (key > kept.key) kept = {key, ~Mass{0}};
    }
    id = draw(row, kept, args.uniform, s);
  }
  if (threadIdx.x == 0) ids[blockIdx.x] = id;
  if (replaced != nullptr) put_back(at, args, replaced);
}

}  // namespace

void sample(const Activations& logits, const SampleRowArgs* rows,
            const LogitAdjustment* adjustments, ReplacedLogit* replaced, int32_t* ids,
            cudaStream_t stream) {
  SPW_ASSERT(logits.dtype == DType::kF32 && (replaced == nullptr || adjustments != nullptr));
  if (logits.rows == 0) return;
  launch(sample_kernel, dim3(static_cast<unsigned>(logits.rows)), kRowThreads, 0, stream,
         reinterpret_cast<float*>(logits.data), logits.stride, static_cast<int>(logits.cols), rows,
         adjustments, replaced, ids);
}

}  // namespace spillway::cuda
