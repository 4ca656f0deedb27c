// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear/linear_half.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "cpu/features.h"
#include "cpu/linear/linear_half_args.h"
#include "cpu/parallel.h"

namespace spillway::cpu {
namespace {

// The tables that this processor has; each is better than those before from its least number of
// tokens on. Empty if it has none.
using Tables = std::vector<HalfKernels>;

Tables find_tables([[maybe_unused]] DType type) {
  Tables found;
  [[maybe_unused]] const CpuFeatures& has = cpu_features();
#if defined(__aarch64__)
  if (type == DType::kF16 && has.fp16fml) {
    found.push_back(kF16Fp16fmlKernels);
    if (has.bf16) found.push_back(kF16BfmmlaKernels);
  } else if (type == DType::kBF16 && has.bf16) {
    found.push_back(kBf16BfmmlaKernels);
  }
#elif defined(__x86_64__)
  const bool half = type == DType::kF16;
  if (has.avx512_vnni) found.push_back(half ? kF16Avx512Kernels : kBf16Avx512Kernels);
  if (has.amx_bf16) found.push_back(half ? kF16AmxKernels : kBf16AmxKernels);
#endif
  return found;
}

const Tables& tables_for(DType type) {
  static const Tables half = find_tables(DType::kF16);
  static const Tables bfloat = find_tables(DType::kBF16);
  static const Tables none;
  return type == DType::kF16 ? half : type == DType::kBF16 ? bfloat : none;
}

// Returns the kernel for the next group of `tokens` that are left: the narrowest that takes them
// all.
const HalfKernel& kernel_for(DType type, int64_t tokens) {
  const Tables& tables = tables_for(type);
  const HalfKernels* table = &tables.front();
  for (const HalfKernels& other : tables) {
    if (tokens >= other.least_tokens) table = &other;
  }
  const HalfKernel *begin = table->kernels, *end = begin + table->count;
  const auto wide_enough = [&](const HalfKernel& kernel) { return kernel.tokens >= tokens; };
  const HalfKernel* found = std::find_if(begin, end, wide_enough);
  return found == end ? end[-1] : *found;
}

int64_t measured_least_tokens = 0;

// Factors come first, so that packed activations stay aligned to cache lines.
constexpr int64_t kFactorFloats = 32;

}  // namespace

bool has_half_product(const WeightView& w, int64_t tokens) {
  const Tables& tables = tables_for(w.dtype);
  if (tables.empty()) return false;
  const int64_t most = tables.back().most_tokens;
  const int64_t least =
      measured_least_tokens > 0 ? measured_least_tokens : tables.front().least_tokens;
  return tokens >= least && (most == 0 || tokens <= most);
}

void use_half_kernels_from(int64_t tokens) { measured_least_tokens = tokens; }

HalfGroup half_group(const WeightView& w, const LinearArgs& a, int64_t first) {
  const HalfKernel& kernel = kernel_for(w.dtype, a.tokens - first);
  return {&kernel,
          first,
          {.w = a.w,
           .row_bytes = a.row_bytes,
           .k = a.k,
           .tokens = std::min(kernel.tokens, a.tokens - first),
           .out = a.out + first * a.out_stride,
           .out_stride = a.out_stride,
           .bias = a.bias,
           .accumulate = a.accumulate}};
}

size_t half_shared_floats(const HalfGroup& group) {
  SPW_ASSERT(group.kernel->tokens <= kFactorFloats);
  const int64_t padded = (group.product.k + kHalfStep - 1) / kHalfStep * kHalfStep;
  return static_cast<size_t>(kFactorFloats + group.kernel->x_width * padded / 2);
}

void pack_half(ThreadPool& pool, const HalfGroup& group, const Activations& x, float* shared) {
  const HalfKernel& kernel = *group.kernel;
  const int64_t tokens = group.product.tokens;
  auto* packed = reinterpret_cast<uint16_t*>(shared + kFactorFloats);
  if (!kernel.packs_rows) {
    kernel.pack(x.f32(group.first), x.stride, tokens, x.cols, packed, shared);
    return;
  }
  parallel_if_large(pool, tokens * x.cols, x.cols, 8 * kHalfStep,
                    [&](int64_t begin, int64_t end, int) {
                      std::array<float, kFactorFloats> factors;  // all are 1
                      kernel.pack(x.f32(group.first) + begin, x.stride, tokens, end - begin,
                                  packed + begin * kernel.x_width, factors.data());
                    });
  std::fill_n(shared, kFactorFloats, 1.0F);
}

void set_half_input(HalfProduct& product, const float* shared) {
  product.x = reinterpret_cast<const uint16_t*>(shared + kFactorFloats);
  product.factors = shared;
}

}  // namespace spillway::cpu
