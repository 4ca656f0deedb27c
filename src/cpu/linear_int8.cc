// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear_int8.h"

#include "base/error.h"
#include "cpu/features.h"
#include "cpu/parallel.h"
#include "cpu/quantize_activations.h"

namespace spillway {

namespace {

const Int8Kernels* try_table(Int8Set set) {
  switch (set) {
#if defined(__aarch64__)
    case Int8Set::kDotprod:
      return &kDotprodKernels;
    case Int8Set::kI8mm:
      return &kI8mmKernels;
#elif defined(__x86_64__)
    case Int8Set::kAvx2:
      return &kAvx2Kernels;
    case Int8Set::kAvxVnni:
      return &kAvxVnniKernels;
    case Int8Set::kAvx512Vnni:
      return &kAvx512VnniKernels;
#endif
    default:
      return nullptr;
  }
}

// ARM's two's complement numbers stay at the top of their bytes.
float lift_on_arm(DType type) {
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

// x86 multiplies unsigned weights: q + 2^(bits - 1).
int offset_on_x86(DType type) {
  switch (type) {
    case DType::kQ4_0:
      return 8;
    case DType::kQ5_0:
      return 16;
    case DType::kQ6_K:
      return 32;
    case DType::kQ8_0:
      return 128;
    default:
      return 0;
  }
}

}  // namespace

bool has_int8_set(Int8Set set) {
  const CpuFeatures& cpu = cpu_features();
  switch (set) {
    case Int8Set::kDotprod:
      return cpu.dotprod;
    case Int8Set::kI8mm:
      return cpu.i8mm;
    case Int8Set::kAvx2:
      return cpu.avx2;
    case Int8Set::kAvxVnni:
      return cpu.avx_vnni;
    case Int8Set::kAvx512Vnni:
      return cpu.avx512_vnni;
    default:
      return false;
  }
}

Int8Set best_int8_set() {
  Int8Set best = Int8Set::kNone;
  for (const Int8Set set : kAllInt8Sets) {
    if (has_int8_set(set)) best = set;
  }
  return best;
}

Int8Kernel try_int8_kernel(Int8Set set, DType type) {
  const Int8Kernels* kernels = try_table(set);
  if (kernels == nullptr) return nullptr;
  switch (type) {
    case DType::kQ4_0:
      return kernels->q4_0;
    case DType::kQ4_1:
      return kernels->q4_1;
    case DType::kQ5_0:
      return kernels->q5_0;
    case DType::kQ5_1:
      return kernels->q5_1;
    case DType::kQ8_0:
      return kernels->q8_0;
    case DType::kQ3_K:
      return kernels->q3_k;
    case DType::kQ4_K:
      return kernels->q4_k;
    case DType::kQ5_K:
      return kernels->q5_k;
    case DType::kQ6_K:
      return kernels->q6_k;
    case DType::kG4:
      return kernels->g4;
    default:
      return nullptr;
  }
}

Int8Form int8_form(Int8Set set, DType type) {
  switch (set) {
    case Int8Set::kI8mm:
      if (type == DType::kQ4_0) return {.lift = 16, .offset = 8, .skew = true};
      if (type == DType::kQ4_1 || type == DType::kQ4_K || type == DType::kG4) {
        return {.lift = 16, .skew = true};
      }
      [[fallthrough]];
    case Int8Set::kDotprod:
      return {.lift = lift_on_arm(type)};
    case Int8Set::kAvx2:  // eight bits are multiplied as they are
    case Int8Set::kAvxVnni:
      if (type == DType::kQ8_0) return {};
      [[fallthrough]];
    case Int8Set::kAvx512Vnni:
      return {.offset = offset_on_x86(type), .halves = type == DType::kQ6_K};
    default:
      return {};
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
                      quantize_pairs(x, int8_form(set, w.dtype), begin, end, q, d, m);
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
