// SPDX-License-Identifier: Apache-2.0
// One thread block computes a row: its largest logit, the sum of exponentials relative to that, and
// the likeliest tokens by selection (logit_row.cuh). These are few and are then sorted by counting,
// for each, the tokens before it.
#include "cuda/kernel/launch.cuh"
#include "cuda/sample/logit_row.cuh"
#include "cuda/sample/logprobs.h"

namespace spillway::cuda {
namespace {

struct Entry {
  float logit;
  int32_t id;
  __device__ bool is_before(const Entry& other) const {
    return logit != other.logit ? logit > other.logit : id < other.id;
  }
};

struct Shared : RowShared {
  LogprobsRow asked;
  int32_t id;
  double warp_sum[kRowWarps];
  Entry top_entries[kMostLogprobs];
};

// A row as the selection sees it, in the host's order, in which the two zeros are equal. Tokens
// without probability have key 0.
struct Row {
  const float* logits;
  int vocab;
  __device__ uint32_t key_of(float x) const {
    if (x == -INFINITY) return 0;
    return ordered_bits(x == 0 ? 0.0F : x);
  }
};

// Returns log(sum(exp(x - s.top))) of the row, added in an order that does not depend on timing. A
// thread has few enough terms for F32: vocab / kRowThreads.
__device__ double log_of_sum(const float* logits, int vocab, Shared& s) {
  const float top = s.top;
  float mine = 0;
  for_each_logit<8>(logits, vocab, [&](int, float x) { mine += expf(x - top); });
  double sum = mine;
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, offset);
  if (threadIdx.x % 32 == 0) s.warp_sum[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < kRowWarps; ++w) sum += s.warp_sum[w];
  return log(sum);
}

// Sets s.top_entries to the row's `count` likeliest tokens, in no order.
__device__ void find_likeliest(const Row& row, int count, Shared& s) {
  Mass possible = 0;
  for_each_logit<8>(row.logits, row.vocab, [&](int, float x) { possible += row.key_of(x) != 0; });
  possible = sum_of(possible, s);
  const auto wanted = static_cast<Mass>(count);
  // If fewer tokens have a probability, the first of the others follow, as on the host.
  const Kept kept = possible < wanted ? Kept{0, wanted - possible}
                                      : keep_likeliest<false>(row, Kept(), wanted, s);
  const KeptRun run = kept_run(row, kept, s);
  Mass mine = 0;
  run.for_each(row, kept, [&](int) { ++mine; });
  Mass place = exclusive_sum(mine, s);
  run.for_each(row, kept, [&](int i) { s.top_entries[place++] = {row.logits[i], i}; });
  __syncthreads();
}

__global__ void __launch_bounds__(kRowThreads, 1)
    score_kernel(const float* logits, int64_t stride, int vocab, const int32_t* ids,
                 TokenScore* scores) {
  __shared__ Shared s;
  launch_dependents();
  wait_for_previous();
  const float* const row = logits + blockIdx.x * stride;
  const int32_t id = threadIdx.x == 0 ? ids[blockIdx.x] : 0;
  find_best(row, vocab, s);
  const double log_sum = log_of_sum(row, vocab, s);
  if (threadIdx.x != 0) return;
  const bool usable = s.best >= 0;
  const double logprob = static_cast<double>(row[id]) - s.top - log_sum;
  scores[blockIdx.x] = {usable ? static_cast<float>(logprob) : NAN, s.best};
}

__global__ void __launch_bounds__(kRowThreads, 1)
    logprobs_kernel(const float* logits, int64_t stride, int vocab, const LogprobsRow* rows,
                    const int32_t* ids, float* chosen, TokenLogprob* top) {
  __shared__ Shared s;
  launch_dependents();
  wait_for_previous();
  // These may lie across a bus, so one thread reads them.
  if (threadIdx.x == 0) {
    s.asked = rows[blockIdx.x];
    s.id = ids[s.asked.row];
  }
  __syncthreads();
  const LogprobsRow asked = s.asked;
  if (s.id < 0) return;
  const float* const row = logits + asked.row * stride;
  find_best(row, vocab, s);
  const double log_sum = log_of_sum(row, vocab, s);
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - s.top - log_sum);
  };
  if (threadIdx.x == 0) chosen[blockIdx.x] = logprob(row[s.id]);
  if (asked.count == 0) return;
  find_likeliest({row, vocab}, asked.count, s);
  for (int i = threadIdx.x; i < asked.count; i += kRowThreads) {
    const Entry mine = s.top_entries[i];
    int place = 0;
    for (int other = 0; other < asked.count; ++other) place += s.top_entries[other].is_before(mine);
    top[asked.first + place] = {mine.id, logprob(mine.logit)};
  }
}

}  // namespace

void score(const Activations& logits, const int32_t* ids, TokenScore* scores, cudaStream_t stream) {
  SPW_ASSERT(logits.dtype == DType::kF32);
  if (logits.rows == 0) return;
  launch(score_kernel, dim3(static_cast<unsigned>(logits.rows)), kRowThreads, 0, stream,
         reinterpret_cast<const float*>(logits.data), logits.stride, static_cast<int>(logits.cols),
         ids, scores);
}

void logprobs(const Activations& logits, int64_t count, const LogprobsRow* rows, const int32_t* ids,
              float* chosen, TokenLogprob* top, cudaStream_t stream) {
  SPW_ASSERT(logits.dtype == DType::kF32 && count <= logits.rows);
  if (count == 0) return;
  launch(logprobs_kernel, dim3(static_cast<unsigned>(count)), kRowThreads, 0, stream,
         reinterpret_cast<const float*>(logits.data), logits.stride, static_cast<int>(logits.cols),
         rows, ids, chosen, top);
}

}  // namespace spillway::cuda
