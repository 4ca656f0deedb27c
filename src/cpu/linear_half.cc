// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear_half.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "cpu/features.h"
#include "cpu/linear_half_args.h"
#include "cpu/parallel.h"

namespace spillway::cpu {
namespace {

// For each number of tokens the best that this processor has, ascending; none where it has none.
std::vector<HalfKernel> find_kernels([[maybe_unused]] DType type) {
  std::vector<HalfKernel> found;
#if defined(__aarch64__)
  const CpuFeatures& has = cpu_features();
  const auto add = [&](const HalfKernels& more) {
    found.insert(found.end(), more.kernels, more.kernels + more.count);
  };
  if (type == DType::kF16 && has.fp16fml) {
    add(kF16Fp16fmlKernels);
    if (has.bf16) add(kF16BfmmlaKernels);
  } else if (type == DType::kBF16 && has.bf16) {
    add(kBf16BfmmlaKernels);
  }
#endif
  return found;
}

const std::vector<HalfKernel>& kernels_for(DType type) {
  static const std::vector<HalfKernel> half = find_kernels(DType::kF16);
  static const std::vector<HalfKernel> bfloat = find_kernels(DType::kBF16);
  static const std::vector<HalfKernel> none;
  return type == DType::kF16 ? half : type == DType::kBF16 ? bfloat : none;
}

// The kernel for the next group of `tokens` that are left: the narrowest that takes them all.
const HalfKernel& kernel_for(DType type, int64_t tokens) {
  const auto& kernels = kernels_for(type);
  const auto wide_enough = [&](const HalfKernel& kernel) { return kernel.tokens >= tokens; };
  const auto found = std::find_if(kernels.begin(), kernels.end(), wide_enough);
  return found == kernels.end() ? kernels.back() : *found;
}

// Factors come first, so that packed activations stay aligned to cache lines.
constexpr int64_t kFactorFloats = 16;

size_t group_floats(const HalfKernel& kernel, int64_t k) {
  SPW_ASSERT(kernel.tokens <= kFactorFloats);
  const int64_t padded = (k + kHalfStep - 1) / kHalfStep * kHalfStep;
  return static_cast<size_t>(kFactorFloats + kernel.x_width * padded / 2);
}

}  // namespace

bool has_half_product(const WeightView& w) { return !kernels_for(w.dtype).empty(); }

size_t half_shared_floats(const WeightView& w, int64_t tokens) {
  size_t floats = 0;
  while (tokens > 0) {
    const HalfKernel& kernel = kernel_for(w.dtype, tokens);
    floats += group_floats(kernel, w.cols);
    tokens -= kernel.tokens;
  }
  return floats;
}

void linear_half(ThreadPool& pool, float* shared, const WeightView& w, const Activations& x,
                 const LinearArgs& a) {
  for (int64_t first = 0; first < x.rows;) {
    const HalfKernel& kernel = kernel_for(w.dtype, x.rows - first);
    const int64_t tokens = std::min(kernel.tokens, x.rows - first);
    auto* packed = reinterpret_cast<uint16_t*>(shared + kFactorFloats);
    kernel.pack(x.f32(first), x.stride, tokens, w.cols, packed, shared);
    const HalfProduct product{.w = a.w,
                              .row_bytes = a.row_bytes,
                              .k = a.k,
                              .x = packed,
                              .factors = shared,
                              .tokens = tokens,
                              .out = a.out + first * a.out_stride,
                              .out_stride = a.out_stride,
                              .bias = a.bias,
                              .accumulate = a.accumulate};
    parallel_if_large(
        pool, tokens * w.rows * w.cols / 4, w.rows, kPanelRows,
        [&](int64_t begin, int64_t end, int) { kernel.multiply(product, begin, end); });
    shared += group_floats(kernel, w.cols);
    first += tokens;
  }
}

}  // namespace spillway::cpu
