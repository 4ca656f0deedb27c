// SPDX-License-Identifier: Apache-2.0
// Chooses among the kernels of quant_linear(), and defines the one that reads any type in any
// layout: for matrices in the file's layout and for the rows after the last whole group.
#include "cuda/linear/linear_quant.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "cuda/dequantize/quant_decode.cuh"
#include "cuda/kernel/launch.cuh"
#include "cuda/kernel/shared_address.cuh"
#include "cuda/linear/linear_quant_args.h"
#include "cuda/linear/linear_quant_epilogue.cuh"

namespace spillway::cuda {
namespace {

constexpr int kGenericWarps = 8;
constexpr int kGenericTokens = 8;  // tokens that share a decoded row

struct GenericArgs {
  QuantArgs call;
  int64_t row_bytes;
  int64_t grouped_rows[3];
  int first_row[3];
  int row_count[3];
  int total_rows;  // rows of parts that have outputs of their own
};

// Each warp computes a row; its lanes take eight columns at a time, round-robin.
template <class Block>
__global__ void __launch_bounds__(kGenericWarps * 32)
    quant_linear_generic_kernel(const __grid_constant__ GenericArgs g) {
  const QuantArgs& a = g.call;
  wait_for_previous();
  launch_dependents();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int index = static_cast<int>(blockIdx.x) * kGenericWarps + warp;
  if (index >= g.total_rows) return;
  int part = 0;
  while (index >= g.row_count[part]) index -= g.row_count[part++];
  const int row = g.first_row[part] + index;
  const int first_token = static_cast<int>(blockIdx.y) * kGenericTokens;
  const int tokens = min(kGenericTokens, a.tokens - first_token);
  const __half* x = static_cast<const __half*>(a.x) + first_token * a.x_stride;

  float results[2][kGenericTokens];
  for (int p = 0; p < (a.gated() ? 2 : 1); ++p) {
    float sums[kGenericTokens] = {};
    for (int column = lane * 8; column < a.k; column += 256) {
      float w[8];
      decode8_of_row<Block>(a.parts[part + p].data, g.row_bytes, row, g.grouped_rows[part + p],
                            column, w);
#pragma unroll
      for (int t = 0; t < kGenericTokens; ++t) {
        if (t < tokens) {
          const __half* from = x + t * a.x_stride + column;
#pragma unroll
          for (int i = 0; i < 8; ++i) sums[t] = fmaf(w[i], __half2float(from[i]), sums[t]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kGenericTokens; ++t) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        sums[t] += __shfl_xor_sync(~0U, sums[t], step);
      }
      results[p][t] = sums[t];
    }
  }
#pragma unroll
  for (int t = 0; t < kGenericTokens; ++t) {
    if (t < tokens && lane == t) {
      finish_output(a, part, row, first_token + t, results[0][t], a.gated() ? results[1][t] : 0);
    }
  }
}

// Computes all rows of each part, or with `only_ungrouped` those after the groups.
void launch_generic(const LinearCall& call, const QuantArgs& args, bool only_ungrouped,
                    cudaStream_t stream) {
  GenericArgs g{};
  g.call = args;
  g.row_bytes = call.parts[0].w.row_bytes();
  for (int p = 0; p < args.count; ++p) {
    const WeightView& w = call.parts[p].w;
    g.grouped_rows[p] = w.grouped_rows();
    g.first_row[p] = only_ungrouped ? static_cast<int>(w.grouped_rows()) : 0;
    g.row_count[p] = static_cast<int>(w.rows) - g.first_row[p];
    if (!args.gated() || p == 0) g.total_rows += g.row_count[p];
  }
  if (g.total_rows == 0) return;
  const dim3 grid(static_cast<unsigned>((g.total_rows + kGenericWarps - 1) / kGenericWarps),
                  static_cast<unsigned>((args.tokens + kGenericTokens - 1) / kGenericTokens));
  with_stored_block(call.parts[0].w.dtype, [&]<class Block>() {
    if constexpr (!requires { Block::kBytes; }) {
      launch(quant_linear_generic_kernel<Block>, grid, dim3(kGenericWarps * 32), 0, stream, g);
    }
  });
}

QuantLauncher grouped_launcher(DType type) {
  switch (type) {
    case DType::kQ4_0:
      return launch_quant_q4_0;
    case DType::kQ4_1:
      return launch_quant_q4_1;
    case DType::kG4:
      return launch_quant_g4;
    case DType::kQ5_0:
      return launch_quant_q5_0;
    case DType::kQ5_1:
      return launch_quant_q5_1;
    case DType::kQ8_0:
      return launch_quant_q8_0;
    case DType::kQ2_K:
      return launch_quant_q2_k;
    case DType::kQ3_K:
      return launch_quant_q3_k;
    case DType::kQ4_K:
      return launch_quant_q4_k;
    case DType::kQ5_K:
      return launch_quant_q5_k;
    case DType::kQ6_K:
      return launch_quant_q6_k;
    default:
      return nullptr;
  }
}

// Has static shared memory if wgmma was compiled, which is only for sm_90a.
__global__ void wgmma_probe_kernel() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ int present;
  asm volatile("" ::"r"(shared_address(&present)));
#endif
}

bool has_wgmma(int major) {
  cudaFuncAttributes attributes = {};
  SPW_CUDA_CHECK(cudaFuncGetAttributes(&attributes, wgmma_probe_kernel));
  return major == 9 && attributes.sharedSizeBytes > 0;
}

const QuantDeviceLimits& device_limits() {
  static std::once_flag once[kQuantDevices];
  static QuantDeviceLimits limits[kQuantDevices];
  int device = 0;
  SPW_CUDA_CHECK(cudaGetDevice(&device));
  SPW_CHECK(device < kQuantDevices, kUnsupported, "more than {} GPUs", kQuantDevices);
  std::call_once(once[device], [&] {
    int major = 0;
    QuantDeviceLimits& of = limits[device];
    SPW_CUDA_CHECK(cudaDeviceGetAttribute(&of.sms, cudaDevAttrMultiProcessorCount, device));
    SPW_CUDA_CHECK(
        cudaDeviceGetAttribute(&of.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    SPW_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    SPW_CUDA_CHECK(
        cudaDeviceGetAttribute(&of.sm_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    SPW_CUDA_CHECK(
        cudaDeviceGetAttribute(&of.reserved, cudaDevAttrReservedSharedMemoryPerBlock, device));
    of.device = device;
    of.clusters = major >= 9;
    of.wgmma = has_wgmma(major);
  });
  return limits[device];
}

bool aligned(const void* address, size_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

void check(const LinearCall& call) {
  const LinearPart& first = call.parts[0];
  SPW_ASSERT(call.count >= 1 && call.count <= 3);
  SPW_ASSERT(call.epilogue != Epilogue::kGated || call.count == 2);
  SPW_ASSERT(is_quantized(first.w.dtype) && call.x.dtype == DType::kF16);
  SPW_ASSERT(first.w.cols <= INT32_MAX / 2 && call.x.cols == first.w.cols);
  for (int p = 0; p < call.count; ++p) {
    const LinearPart& part = call.parts[p];
    SPW_ASSERT(part.w.dtype == first.w.dtype && part.w.layout == first.w.layout &&
               part.w.cols == first.w.cols && aligned(part.w.data, 2) && part.w.rows <= INT32_MAX);
    if (call.epilogue == Epilogue::kGated && p > 0) {
      SPW_ASSERT(part.w.rows == first.w.rows);
      continue;  // up has no output
    }
    SPW_ASSERT(part.out.dtype == first.out.dtype && part.out.stride == first.out.stride &&
               part.out.rows == call.x.rows && part.out.cols == part.w.rows);
    SPW_ASSERT(call.epilogue != Epilogue::kAccumulate || part.out.dtype == DType::kF32);
    SPW_ASSERT(!is_quantized(part.out.dtype));
  }
}

// Makes one pass over the weights.
void run(const LinearCall& call, cudaStream_t stream, const QuantLinearTuning& tuning) {
  QuantArgs args{};
  args.count = call.count;
  args.x = call.x.data;
  args.x_stride = call.x.stride;
  args.tokens = static_cast<int>(call.x.rows);
  args.k = static_cast<int>(call.x.cols);
  args.out_stride = call.parts[0].out.stride;
  args.out_dtype = call.parts[0].out.dtype;
  args.epilogue = call.epilogue;
  args.activation = call.activation;
  args.group_bytes = kGroupRows * call.parts[0].w.row_bytes();
  bool all_aligned = aligned(args.x, 8) && args.x_stride % 4 == 0;
  for (int p = 0; p < call.count; ++p) {
    const LinearPart& part = call.parts[p];
    args.parts[p] = {reinterpret_cast<const uint8_t*>(part.w.data), part.bias, part.out.data,
                     static_cast<int>(part.w.grouped_rows() / kGroupRows),
                     static_cast<int>(part.w.rows)};
    args.items += args.parts[p].groups;
    all_aligned = all_aligned && aligned(part.w.data, 16);
  }
  const QuantLauncher launcher =
      tuning.generic || !all_aligned ? nullptr : grouped_launcher(call.parts[0].w.dtype);
  bool grouped = launcher != nullptr && args.items > 0;
  if (grouped) {
    // Takes fewer tokens at a time if x of all of them does not fit into shared memory.
    const QuantDeviceLimits& limits = device_limits();
    int step = std::max(args.tokens, 1);
    for (int done = 0; done < args.tokens && grouped;) {
      QuantArgs some = args;
      some.tokens = std::min(step, args.tokens - done);
      some.x = static_cast<const __half*>(args.x) + done * args.x_stride;
      for (int p = 0; p < call.count; ++p) {
        if (some.parts[p].out == nullptr) continue;
        some.parts[p].out =
            call.parts[p].out.data + row_bytes(args.out_dtype, done * args.out_stride);
      }
      if (launcher(some, tuning, limits, stream)) {
        done += some.tokens;
      } else if (step > 1) {
        step = (step + 1) / 2;
      } else {
        grouped = false;
      }
    }
  }
  launch_generic(call, args, grouped, stream);
}

}  // namespace

void quant_linear(const LinearCall& call, cudaStream_t stream, const QuantLinearTuning& tuning) {
  check(call);
  const int64_t most = tuning.same_bits ? kQuantSameBitsTokens : kQuantLinearTokens;
  for (int64_t first = 0; first < call.x.rows; first += most) {
    LinearCall some = call;
    const int64_t count = std::min(most, call.x.rows - first);
    some.x = call.x.row_range(first, count);
    for (int p = 0; p < call.count; ++p) {
      if (!call.parts[p].out.empty()) some.parts[p].out = call.parts[p].out.row_range(first, count);
    }
    run(some, stream, tuning);
  }
}

}  // namespace spillway::cuda
