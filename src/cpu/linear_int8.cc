// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear_int8.h"

#include "base/error.h"
#include "cpu/features.h"
#include "cpu/parallel.h"
#include "cpu/quantize_activations.h"

namespace spillway {

Int8Set best_int8_set() {
  const CpuFeatures& cpu = cpu_features();
  if (cpu.i8mm) return Int8Set::kI8mm;
  if (cpu.dotprod) return Int8Set::kDotprod;
  return Int8Set::kNone;
}

Int8Kernel try_int8_kernel([[maybe_unused]] Int8Set set, [[maybe_unused]] DType type) {
#if defined(__aarch64__)
  if (set == Int8Set::kNone) return nullptr;
  const Int8Kernels& kernels = set == Int8Set::kI8mm ? kI8mmKernels : kDotprodKernels;
  switch (type) {
    case DType::kQ4_0:
      return kernels.q4_0;
    case DType::kQ4_1:
      return kernels.q4_1;
    case DType::kQ5_0:
      return kernels.q5_0;
    case DType::kQ5_1:
      return kernels.q5_1;
    case DType::kQ8_0:
      return kernels.q8_0;
    case DType::kQ3_K:
      return kernels.q3_k;
    case DType::kQ4_K:
      return kernels.q4_k;
    case DType::kQ5_K:
      return kernels.q5_k;
    case DType::kQ6_K:
      return kernels.q6_k;
    case DType::kG4:
      return kernels.g4;
    default:
      return nullptr;
  }
#else
  return nullptr;
#endif
}

float int8_lift(DType type) {
  switch (type) {
    case DType::kQ4_0:
      return 16;
    case DType::kQ5_0:
      return 8;
    case DType::kQ6_K:
      return 4;
    case DType::kQ3_K:
      return 32;
    default:
      return 1;
  }
}

namespace cpu {

size_t int8_shared_floats(int64_t tokens, int64_t k) {
  const int64_t pairs = (tokens + 1) / 2;
  return static_cast<size_t>(pairs * (2 * k / 4 + 2 * (k / 8)));
}

void linear_int8(ThreadPool& pool, const Workspace& workspace, float* shared, const WeightView& w,
                 const Activations& x, const LinearArgs& a) {
  static const Int8Set set = best_int8_set();
  const Int8Kernel kernel = try_int8_kernel(set, w.dtype);
  SPW_CHECK(kernel != nullptr, kUnsupported, "this processor has no kernel for packed {} weights",
            dtype_name(w.dtype));
  const int64_t pairs = (x.rows + 1) / 2, groups = w.grouped_rows() / kGroupRows;
  auto* q = reinterpret_cast<int8_t*>(shared);
  float* d = shared + pairs * w.cols / 2;
  float* m = d + pairs * w.cols / 8;
  // Rounding costs some instructions an element, one of many multiplications.
  parallel_if_large(pool, x.rows > 1 ? x.rows * x.cols : 0, pairs, 1,
                    [&](int64_t begin, int64_t end, int) {
                      quantize_pairs(x, int8_lift(w.dtype), begin, end, q, d, m);
                    });
  const Int8Args args{.w = reinterpret_cast<const uint8_t*>(w.data),
                      .group_bytes = kGroupRows * w.row_bytes(),
                      .k = w.cols,
                      .q = q,
                      .d = d,
                      .m = m,
                      .tokens = x.rows,
                      .out = a.out,
                      .out_stride = a.out_stride,
                      .bias = a.bias,
                      .accumulate = a.accumulate};
  // Eight multiplications cost what one costs in F32.
  parallel_if_large(pool, x.rows * w.grouped_rows() * w.cols / 8, groups, 1,
                    [&](int64_t begin, int64_t end, int worker) {
                      kernel(args, begin, end,
                             reinterpret_cast<uint8_t*>(workspace.worker(worker)));
                    });
}

}  // namespace cpu
}  // namespace spillway
