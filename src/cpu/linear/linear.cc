// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear/linear.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "cpu/dequantize/decode_row.h"
#include "cpu/features.h"
#include "cpu/linear/linear_args.h"
#include "cpu/linear/linear_bf16.h"
#include "cpu/linear/linear_half.h"
#include "cpu/linear/linear_int8.h"
#include "cpu/parallel.h"
#include "device/tuning.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/linear/linear.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "cpu/linear/linear_kernels_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

void linear_rows(DType type, const LinearArgs& a, int64_t begin, int64_t end, float* panel) {
  with_decoder(type, [&](auto decoder) HWY_ATTR {
    using Decoder = decltype(decoder);
    if (a.tokens == 1) {
      linear_one<Decoder>(a, begin, end);
    } else {
      linear_many<Decoder>(a, begin, end, panel);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(linear_rows);

namespace cpu {
namespace {

// How the rows of a matrix are multiplied.
enum class Path {
  kFloatRows,   // decoded to F32: any type, any processor, the one order of `deterministic`
  kHalfRows,    // linear_half.h
  kInt8Groups,  // linear_int8.h, packed rows; those behind the last whole group as kFloatRows
  kBf16Panels,  // linear_bf16.h, likewise
};

Path path_of(LinearKernel kernel, const WeightView& w, int64_t tokens, bool deterministic) {
  if (kernel == LinearKernel::kGemm) return Path::kBf16Panels;
  if (!deterministic && has_half_product(w, tokens)) return Path::kHalfRows;
  return w.grouped_rows() > 0 ? Path::kInt8Groups : Path::kFloatRows;
}

// Scratch memory for x in the form that the path wants.
size_t activation_floats(Path path, const WeightView& w, int64_t tokens) {
  switch (path) {
    case Path::kHalfRows:
      return half_shared_floats(w, tokens);
    case Path::kInt8Groups:
      return int8_shared_floats(tokens, w.cols);
    case Path::kBf16Panels:
      return bf16_shared_floats(tokens, w.cols);
    case Path::kFloatRows:
      break;
  }
  return w.cols % 16 == 0 ? 0 : static_cast<size_t>(tokens * ((w.cols + 15) / 16 * 16));
}

// x with rows padded by zeros to a multiple of 16 columns: what kernels may read to the end.
void pad_columns(const Activations& x, int64_t stride, float* out) {
  for (int64_t t = 0; t < x.rows; ++t) {
    std::memcpy(out + t * stride, x.f32(t), static_cast<size_t>(x.cols) * sizeof(float));
    std::memset(out + t * stride + x.cols, 0, static_cast<size_t>(stride - x.cols) * sizeof(float));
  }
}

// For shapes that nobody has measured here: what `spillway profile` found elsewhere. Packed types
// on two Neoverse V1 cores: Q4_K from 49 to 80 tokens, Q4_0 66 to 113, Q8_0 from 83 or never; F16
// 20 to
// 25. Q4_0 on 16 cores with VNNI and AMX: 56 to 62.
InflectionPoints default_points(const WeightView& w) {
  // The kernels for few tokens on 16-bit rows compete; those for BF16 decode nothing.
  const CpuFeatures& cpu = cpu_features();
  if (has_half_product(w, 16)) {
    return {.m1 = 2, .m2 = w.dtype == DType::kBF16 || cpu.amx_bf16 ? 33 : 23};
  }
  if (w.layout != WeightLayout::kGroups16) return {.m1 = 2, .m2 = 16};
  return {.m1 = 2, .m2 = cpu.i8mm ? 72 : cpu.avx512_vnni ? 56 : 16};
}

}  // namespace

LinearKernel choose_linear_kernel(const WeightView& w, int64_t tokens, bool deterministic,
                                  const TuningTable* tuning) {
  std::optional<InflectionPoints> measured;
  if (tuning != nullptr && !deterministic) measured = tuning->try_points(shape_of(w));
  const LinearKernel kernel = kernel_at(measured.value_or(default_points(w)), tokens);
  const bool missing = kernel == LinearKernel::kGemm && (deterministic || !has_bf16_product(w));
  return missing ? LinearKernel::kFlat : kernel;
}

void linear(ThreadPool& pool, Workspace& workspace, const WeightView& w, const WeightView& bias,
            const Activations& x, const Activations& out, LinearMode mode, bool deterministic,
            const TuningTable* tuning) {
  SPW_ASSERT(x.dtype == DType::kF32 && out.dtype == DType::kF32);
  SPW_ASSERT(w.cols == x.cols && w.rows == out.cols && x.rows == out.rows);
  SPW_ASSERT(bias.empty() || bias.cols == w.rows);
  if (x.rows == 0 || w.rows == 0) return;
  const LinearKernel kernel = choose_linear_kernel(w, x.rows, deterministic, tuning);
  if (kernel == LinearKernel::kGemv && x.rows > 1) {
    for (int64_t t = 0; t < x.rows; ++t) {
      linear(pool, workspace, w, bias, x.row_range(t, 1), out.row_range(t, 1), mode, deterministic,
             tuning);
    }
    return;
  }

  const Path path = path_of(kernel, w, x.rows, deterministic);
  const bool convert_bias = !bias.empty() && bias.dtype != DType::kF32;
  // A file's F32 bias may lie at any byte, so it is converted (copied) too.
  const bool copy_bias =
      !bias.empty() && (convert_bias || reinterpret_cast<uintptr_t>(bias.data) % 4 != 0);
  const size_t x_floats = activation_floats(path, w, x.rows);
  const size_t bias_floats = copy_bias ? static_cast<size_t>(w.rows) : 0;
  float* scratch = nullptr;
  if (x_floats + bias_floats > 0) scratch = workspace.shared(x_floats + bias_floats);

  LinearArgs a{.w = reinterpret_cast<const uint8_t*>(w.data),
               .row_bytes = w.row_bytes(),
               .k = w.cols,
               .x = x.f32(),
               .x_stride = x.stride,
               .tokens = x.rows,
               .out = out.f32(),
               .out_stride = out.stride,
               .accumulate = mode == LinearMode::kAccumulate};
  if (copy_bias) {
    decode_row(bias.dtype, bias.data, scratch + x_floats, w.rows);
    a.bias = scratch + x_floats;
  } else if (!bias.empty()) {
    a.bias = reinterpret_cast<const float*>(bias.data);
  }
  workspace.reserve_workers(std::max({static_cast<size_t>(kPanelFloats), kInt8WorkerFloats,
                                      path == Path::kBf16Panels ? bf16_worker_floats(w) : 0}));
  if (path == Path::kHalfRows) {
    linear_half(pool, scratch, w, x, a);
    return;
  }
  const int64_t grouped = w.grouped_rows();
  const int64_t done = path == Path::kBf16Panels && grouped == 0 ? w.rows : grouped;
  if (path == Path::kBf16Panels) {
    linear_bf16(pool, workspace, scratch, w, done, x, a);
  } else if (path == Path::kInt8Groups) {
    linear_int8(pool, workspace, scratch, w, x, a);
  } else if (x_floats > 0) {
    a.x_stride = (w.cols + 15) / 16 * 16;
    pad_columns(x, a.x_stride, scratch);
    a.x = scratch;
  }
  a.w += done * a.row_bytes;
  a.out += done;
  if (a.bias != nullptr) a.bias += done;
  const int64_t rows = w.rows - done;  // those behind the last whole group are not packed
  parallel_if_large(pool, x.rows * rows * w.cols, rows, kPanelRows,
                    [&](int64_t begin, int64_t end, int worker) {
                      HWY_DYNAMIC_DISPATCH(linear_rows)
                      (w.dtype, a, begin, end, workspace.worker(worker));
                    });
}

}  // namespace cpu
}  // namespace spillway
#endif
