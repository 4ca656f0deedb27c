// SPDX-License-Identifier: Apache-2.0
#include "cpu/linear/linear.h"

#include <optional>

#include "base/error.h"
#include "cpu/dequantize/decode_row.h"
#include "cpu/features.h"
#include "cpu/linear/linear_args.h"
#include "cpu/linear/linear_bf16.h"
#include "cpu/linear/linear_half.h"
#include "cpu/linear/linear_jobs.h"
#include "device/tuning.h"

namespace spillway::cpu {
namespace {

LinearPath path_of(const WeightView& w, int64_t tokens, bool deterministic) {
  if (!deterministic && has_half_product(w, tokens)) return LinearPath::kHalfRows;
  return w.grouped_rows() > 0 ? LinearPath::kInt8Groups : LinearPath::kFloatRows;
}

// Returns defaults for shapes that were not measured here, as `spillway profile` found them on
// other machines. For packed types on two Neoverse V1 cores it found m2 from 49 to 80 tokens for
// Q4_K, 66 to 113 for Q4_0, and from 83 or never for Q8_0; for F16 20 to 25. For Q4_0 on 16 cores
// with VNNI and AMX it found 56 to 62.
InflectionPoints default_points(const WeightView& w) {
  // The kernels for few tokens on 16-bit rows compete with these; those for BF16 decode nothing.
  const CpuFeatures& cpu = cpu_features();
  if (has_half_product(w, 16)) {
    return {.m1 = 2, .m2 = w.dtype == DType::kBF16 || cpu.amx_bf16 ? 33 : 23};
  }
  if (w.layout != WeightLayout::kGroups16) return {.m1 = 2, .m2 = 16};
  return {.m1 = 2, .m2 = cpu.i8mm ? 72 : cpu.avx512_vnni ? 56 : 16};
}

// Multiplies many tokens; rows after the last whole packed group are multiplied like unpacked ones.
void multiply_panels(ThreadPool& pool, Workspace& workspace, const Projection& part,
                     const Activations& x, LinearMode mode) {
  const WeightView& w = part.w;
  const bool convert_bias = !part.bias.empty();
  const size_t floats = bf16_shared_floats(x.rows, w.cols);
  float* scratch = workspace.shared(floats + static_cast<size_t>(convert_bias ? w.rows : 0));
  workspace.reserve_workers(bf16_worker_floats(w));
  LinearArgs a{.w = reinterpret_cast<const uint8_t*>(w.data),
               .row_bytes = w.row_bytes(),
               .k = w.cols,
               .tokens = x.rows,
               .out = part.out.f32(),
               .out_stride = part.out.stride,
               .accumulate = mode == LinearMode::kAccumulate};
  if (convert_bias) {
    decode_row(part.bias.dtype, part.bias.data, scratch + floats, w.rows);
    a.bias = scratch + floats;
  }
  // A slice that has only rows of whole groups is computed as in the whole matrix.
  const int64_t done = w.layout == WeightLayout::kGroups16 ? w.grouped_rows() : w.rows;
  if (done > 0) linear_bf16(pool, workspace, scratch, w, done, x, a);
  if (done == w.rows) return;
  LinearJobs rest(x);
  rest.add(part, LinearPath::kFloatRows, mode, done);
  rest.run(pool, workspace);
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

namespace {

void multiply(ThreadPool& pool, Workspace& workspace, std::span<const Projection> parts,
              const Activations& x, LinearMode mode, bool deterministic,
              const TuningTable* tuning) {
  LinearJobs jobs(x);
  for (const Projection& part : parts) {
    const auto& [w, bias, out] = part;
    SPW_ASSERT(x.dtype == DType::kF32 && out.dtype == DType::kF32);
    SPW_ASSERT(w.cols == x.cols && w.rows == out.cols && x.rows == out.rows);
    SPW_ASSERT(bias.empty() || bias.cols == w.rows);
    if (x.rows == 0 || w.rows == 0) continue;
    const LinearKernel kernel = choose_linear_kernel(w, x.rows, deterministic, tuning);
    if (kernel == LinearKernel::kGemm) {
      multiply_panels(pool, workspace, part, x, mode);
    } else if (kernel == LinearKernel::kGemv && x.rows > 1) {
      for (int64_t t = 0; t < x.rows; ++t) {
        linear(pool, workspace, w, bias, x.row_range(t, 1), out.row_range(t, 1), mode,
               deterministic, tuning);
      }
    } else {
      jobs.add(part, path_of(w, x.rows, deterministic), mode);
    }
  }
  jobs.run(pool, workspace);
}

}  // namespace

void linear(ThreadPool& pool, Workspace& workspace, const WeightView& w, const WeightView& bias,
            const Activations& x, const Activations& out, LinearMode mode, bool deterministic,
            const TuningTable* tuning) {
  const Projection part{w, bias, out};
  multiply(pool, workspace, {&part, 1}, x, mode, deterministic, tuning);
}

void linears(ThreadPool& pool, Workspace& workspace, std::span<const Projection> parts,
             const Activations& x, bool deterministic, const TuningTable* tuning) {
  multiply(pool, workspace, parts, x, LinearMode::kStore, deterministic, tuning);
}

}  // namespace spillway::cpu
