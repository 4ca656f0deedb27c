// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear/linear_int8.h"

#include "base/error.h"
#include "cpu/features.h"
#include "cpu/linear/quantize_activations.h"
#include "cpu/parallel.h"
#include "tensor/packed_layout.h"

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

// Two's complement numbers stay at the top of their bytes on ARM. `mixed` means that instructions
// multiply unsigned by signed bytes, which allows nibbles and unsigned numbers as well.
//
// For the multipliers of K types: a sum of 256 columns is at most 256 * 127 (codes) * the
// multipliers * the largest scale * the largest q * lift. If that leaves fewer than 32 multipliers
// in 32 bits, terms are rounded to multiples of 2^14 or more (linear_int8_super_inl.h), and there
// are 127 multipliers: multipliers times 2^8 fit 16 bits. Factors are then below 2^14 * 2^15 and a
// sum of 32 columns below 2^5 * 2^8 * 2^7: a term is less than 2^(20 + 29 - 31), and 16 of them do
// not overflow.
Int8Form arm_form(DType type, bool mixed) {
  const auto exact = [](int multipliers) { return Int8Form{.multipliers = multipliers}; };
  const auto rounded = [](float lift, int scale_lift) {
    return Int8Form{.lift = lift,
                    .multipliers = 127,
                    .multiplier_unit = 256,
                    .integer_unit = (1 << 16) / scale_lift};
  };
  Int8Form form;
  switch (type) {
    case DType::kQ4_0:
      if (mixed) return {.lift = 16, .offset = 8, .skew = true};
      return {.lift = 16};
    case DType::kQ5_0:
      return {.lift = 8};
    case DType::kQ4_1:
    case DType::kG4:
      if (mixed) return {.lift = 16, .skew = true};
      return {};
    case DType::kQ2_K:
      form = exact(127);  // 256 * 127 * 127 * 15 * 3
      form.halves = true;
      return form;
    case DType::kQ3_K:
      return rounded(32, 4);
    case DType::kQ4_K:
      if (!mixed) return exact(64);  // 256 * 127 * 64 * 63 * 15 < 2^31
      form = rounded(16, 2);
      form.skew = true;
      return form;
    case DType::kQ5_K:
      return mixed ? rounded(8, 2) : exact(32);  // 256 * 127 * 32 * 63 * 31 < 2^31
    case DType::kQ6_K:
      return rounded(4, 1);
    default:
      return {};
  }
}

// Returns 2^(bits - 1): x86 multiplies unsigned weights, so kernels see q + 2^(bits - 1).
int offset_on_x86(DType type) {
  switch (type) {
    case DType::kQ3_K:
      return 4;
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
    case DType::kQ2_K:
      return kernels->q2_k;
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
    case Int8Set::kDotprod:
      return arm_form(type, set == Int8Set::kI8mm);
    case Int8Set::kAvx2:  // eight bits are multiplied as they are
    case Int8Set::kAvxVnni:
      if (type == DType::kQ8_0) return {};
      [[fallthrough]];
    case Int8Set::kAvx512Vnni:
      return {.offset = offset_on_x86(type),
              .halves = type == DType::kQ2_K || type == DType::kQ3_K || type == DType::kQ6_K};
    default:
      return {};
  }
}

WeightLayout layout_for_kernels(DType type, int64_t rows) {
  const bool packed =
      rows >= kGroupRows && can_pack(type) && try_int8_kernel(best_int8_set(), type) != nullptr;
  return packed ? WeightLayout::kGroups16 : WeightLayout::kRows;
}

namespace cpu {

size_t int8_shared_floats(int64_t tokens, int64_t k) {
  const int64_t pairs = (tokens + 1) / 2;
  const int64_t super = static_cast<int64_t>(sizeof(Int8Super) / sizeof(float));
  return static_cast<size_t>(pairs * (2 * k / 4 + 2 * (k / 8) + k / 256 * super));
}

namespace {

QuantizedPairs pairs_in(float* shared, int64_t tokens, int64_t k) {
  const int64_t pairs = (tokens + 1) / 2;
  float* d = shared + pairs * k / 2;
  float* m = d + pairs * k / 8;
  return {reinterpret_cast<int8_t*>(shared), d, m, reinterpret_cast<Int8Super*>(m + pairs * k / 8)};
}

}  // namespace

Int8Product int8_product(const WeightView& w, const LinearArgs& a) {
  static const Int8Set set = best_int8_set();
  const Int8Kernel kernel = try_int8_kernel(set, w.dtype);
  SPW_CHECK(kernel != nullptr, kUnsupported, "this processor has no kernel for packed {} weights",
            dtype_name(w.dtype));
  return {kernel,
          int8_form(set, w.dtype),
          {.w = reinterpret_cast<const uint8_t*>(w.data),
           .group_bytes = kGroupRows * w.row_bytes(),
           .k = w.cols,
           .tokens = a.tokens,
           .out = a.out,
           .out_stride = a.out_stride,
           .bias = a.bias,
           .accumulate = a.accumulate}};
}

void quantize_int8(ThreadPool& pool, const Activations& x, const Int8Form& form, float* shared) {
  const QuantizedPairs to = pairs_in(shared, x.rows, x.cols);
  // Rounding costs some instructions per element, and each element is multiplied many times.
  parallel_if_large(
      pool, x.rows > 1 ? x.rows * x.cols : 0, (x.rows + 1) / 2, 1,
      [&](int64_t begin, int64_t end, int) { quantize_pairs(x, form, begin, end, to); });
}

void set_int8_input(Int8Args& args, float* shared) {
  const QuantizedPairs from = pairs_in(shared, args.tokens, args.k);
  args.q = from.q;
  args.d = from.d;
  args.m = from.m;
  args.super = from.super;
}

}  // namespace cpu
}  // namespace spillway
