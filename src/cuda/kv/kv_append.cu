// SPDX-License-Identifier: Apache-2.0
#include "cuda/kv/kv_append.h"

#include "cuda/attention/attention_page.cuh"
#include "cuda/kernel/launch.cuh"
#include "cuda/kv/kv_faults.cuh"

namespace spillway::cuda {
namespace {

constexpr int kWarps = 4;

struct AppendArgs {
  std::byte* q;
  const std::byte* k;
  const std::byte* v;
  int64_t q_stride, k_stride, v_stride;
  DType dtype;
  const float* angles;
  int64_t angles_stride;
  int rope_dims;
  bool interleaved;
  KvSource kv;
  int64_t block_bytes;
  int page_bytes;
  PageShape shape;
  int q_heads;  // zero if q needs no RoPE
  int kv_heads;
  int rows;
  BatchView batch;
  KvFaults faults;

  __device__ __forceinline__ void report(bool values) const {
    faults.report(values ? KvPart::kValues : KvPart::kKeys, false);
  }
};

// Returns the sequence of a row, or -1 if it has none. All lanes must pass the same row.
__device__ __forceinline__ int sequence_of(const BatchView& batch, int row, int lane) {
  for (int first = 0; first < batch.sequences; first += kWarpSize) {
    const int s = first + lane;
    bool found = false;
    if (s < batch.sequences) {
      const int begin = batch.first_row[s];
      found = row >= begin && row < begin + batch.rows[s];
    }
    const unsigned lanes = __ballot_sync(kAllLanes, found);
    if (lanes != 0) return first + __ffs(static_cast<int>(lanes)) - 1;
  }
  return -1;
}

// Computes in the order of the CPU's operations, and fuses none of them.
__device__ __forceinline__ void rotate_pairs(const AppendArgs& a, float* x, int row, int lane) {
  const float* angles = a.angles + row * a.angles_stride;
  const int pairs = a.rope_dims / 2;
  for (int i = lane; i < pairs; i += kWarpSize) {
    const float cosine = angles[2 * i], sine = angles[2 * i + 1];
    const int first = a.interleaved ? 2 * i : i;
    const int second = a.interleaved ? 2 * i + 1 : i + pairs;
    const float u = x[first], w = x[second];
    x[first] = __fsub_rn(__fmul_rn(u, cosine), __fmul_rn(w, sine));
    x[second] = __fadd_rn(__fmul_rn(u, sine), __fmul_rn(w, cosine));
  }
  __syncwarp();
}

__device__ __forceinline__ bool fits_half(float x) { return fabsf(x) < kKvHalfEnd; }
__device__ __forceinline__ int code_of(float x, float lowest, float highest) {
  return static_cast<int>(rintf(fminf(fmaxf(x, lowest), highest)));
}
__device__ __forceinline__ void put_code(const AppendArgs& a, bool values, std::byte* page,
                                         int token, int byte, int code) {
  const int at = values ? byte / 2 * 32 + token / 8 * 16 + byte % 2 * 8 + token % 8
                        : token * a.shape.row_bytes + byte;
  page[a.shape.codes_at + at] = static_cast<std::byte>(code);
}
__device__ __forceinline__ void put_half(std::byte* page, int at, int group, int token, __half x) {
  reinterpret_cast<__half*>(page + at)[group * kKvBlockTokens + token] = x;
}

__device__ __forceinline__ void store_int8(const AppendArgs& a, bool values, const float* x,
                                           std::byte* page, int token, int lane) {
  constexpr int kGroup = static_cast<int>(kKvGroup);
  for (int group = 0; group * kGroup < a.shape.head_dim; ++group) {
    const float* part = x + group * kGroup;
    const int n = min(kGroup, a.shape.head_dim - group * kGroup);
    // Magnitudes sort like their bits, with NaN above all.
    unsigned top = 0;
    for (int i = lane; i < n; i += kWarpSize) top = max(top, __float_as_uint(fabsf(part[i])));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) top = max(top, __shfl_xor_sync(kAllLanes, top, step));
    const float largest = __uint_as_float(top), wanted = __fdiv_rn(largest, 127.0F);
    if (!fits_half(wanted)) {
      if (lane == 0) {
        put_half(page, 0, group, token, __ushort_as_half(kKvNanHalf));
        if (largest < INFINITY) a.report(values);
      }
      for (int i = lane; i < n; i += kWarpSize)
        put_code(a, values, page, token, group * kGroup + i, 0);
      continue;
    }
    const __half scale = __float2half_rn(wanted);
    const bool zero = __half_as_ushort(scale) == 0;
    const float inverse = zero ? 0 : __fdiv_rn(1.0F, __half2float(scale));
    if (lane == 0) put_half(page, 0, group, token, scale);
    for (int i = lane; i < n; i += kWarpSize) {
      put_code(a, values, page, token, group * kGroup + i,
               code_of(__fmul_rn(part[i], inverse), -127, 127));
    }
  }
}

__device__ __forceinline__ void store_int4(const AppendArgs& a, bool values, const float* x,
                                           std::byte* page, int token, int lane) {
  constexpr int kGroup = static_cast<int>(kKvGroup);
  for (int group = 0; group * kGroup < a.shape.head_dim; ++group) {
    const float* part = x + group * kGroup;
    const int n = min(kGroup, a.shape.head_dim - group * kGroup);
    float smallest = part[0], largest = part[0];
    bool numbers = true;
    for (int i = lane; i < n; i += kWarpSize) {
      smallest = fminf(smallest, part[i]);
      largest = fmaxf(largest, part[i]);
      numbers = numbers && fabsf(part[i]) < INFINITY;
    }
    numbers = __all_sync(kAllLanes, numbers);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      smallest = fminf(smallest, __shfl_xor_sync(kAllLanes, smallest, step));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    }
    if (smallest == 0) {  // the reference keeps the sign of the first zero
      for (int first = 0; first < n; first += kWarpSize) {
        const bool is = first + lane < n && part[first + lane] == 0;
        const unsigned lanes = __ballot_sync(kAllLanes, is);
        if (lanes != 0) {
          smallest = part[first + __ffs(static_cast<int>(lanes)) - 1];
          break;
        }
      }
    }
    const __half low = __float2half_rn(smallest);
    const float base = __half2float(low);
    const float wanted = __fdiv_rn(__fsub_rn(largest, base), 15.0F);
    if (!numbers || !fits_half(smallest) || !fits_half(wanted)) {
      if (lane == 0) {
        put_half(page, 0, group, token, __ushort_as_half(kKvNanHalf));
        put_half(page, a.shape.mins_at, group, token, __ushort_as_half(kKvNanHalf));
        if (numbers) a.report(values);
      }
      if (lane < n / 2) put_code(a, values, page, token, group * (kGroup / 2) + lane, 0);
      continue;
    }
    const __half scale = __float2half_rn(wanted);
    const unsigned bits = __half_as_ushort(scale);
    const bool flat = bits == 0 || (bits & 0x8000U) != 0;
    const float inverse = flat ? 0 : __fdiv_rn(1.0F, __half2float(scale));
    if (lane == 0) {
      put_half(page, 0, group, token, flat ? __ushort_as_half(0) : scale);
      put_half(page, a.shape.mins_at, group, token, low);
    }
    const auto code = [&](float value) {
      return code_of(__fmul_rn(__fsub_rn(value, base), inverse), 0, 15);
    };
    if (lane < n / 2) {
      put_code(a, values, page, token, group * (kGroup / 2) + lane,
               code(part[lane]) | code(part[n / 2 + lane]) << 4);
    }
  }
}

template <KvType kType>
__device__ __forceinline__ void store_row(const AppendArgs& a, bool values, float* x,
                                          std::byte* page, int token, int lane) {
  if constexpr (!is_quantized(kType)) {
    [[maybe_unused]] const KvPart part = values ? KvPart::kValues : KvPart::kKeys;
    for (int i = lane; i < a.shape.head_dim; i += kWarpSize) {
      const int at = token * a.shape.head_dim + i;
      if constexpr (kType == KvType::kF32) {
        reinterpret_cast<float*>(page)[at] =
            fabsf(x[i]) < INFINITY ? x[i] : __uint_as_float(kKvNanFloat);
      } else if constexpr (kType == KvType::kF16) {
        reinterpret_cast<__half*>(page)[at] = half_in_page(x[i], part, a.faults);
      } else {
        reinterpret_cast<__nv_bfloat16*>(page)[at] = bf16_in_page(x[i], part, a.faults);
      }
    }
  } else if constexpr (kType == KvType::kInt8) {
    store_int8(a, values, x, page, token, lane);
  } else {
    rotate_in_warp(x, a.shape.head_dim, lane);
    store_int4(a, values, x, page, token, lane);
  }
}

// Each warp computes one head of a row: first the heads of q, then those of k, then of v.
template <KvType kType>
__global__ __launch_bounds__(kWarps* kWarpSize) void rope_and_append_kernel(
    const __grid_constant__ AppendArgs a) {
  __shared__ float rows[kWarps][256];
  launch_dependents();
  wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int row = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y) * kWarps + warp;
  if (head >= a.q_heads + 2 * a.kv_heads) return;
  const int sequence = sequence_of(a.batch, row, lane);
  if (sequence < 0) return;

  const int dim = a.shape.head_dim;
  const bool is_query = head < a.q_heads;
  const bool is_value = head >= a.q_heads + a.kv_heads;
  const int kv_head = (head - a.q_heads) % a.kv_heads;
  const std::byte* from = is_query ? a.q + (row * a.q_stride + head * dim) * element_bytes(a.dtype)
                          : is_value
                              ? a.v + (row * a.v_stride + kv_head * dim) * element_bytes(a.dtype)
                              : a.k + (row * a.k_stride + kv_head * dim) * element_bytes(a.dtype);
  float* x = rows[warp];
  const KvFaults faults = is_query ? KvFaults() : a.faults;
  for (int i = lane; i < dim; i += kWarpSize) {
    x[i] = unless_saturated(a.dtype, load_element(from, a.dtype, i),
                            is_value ? KvPart::kValues : KvPart::kKeys, faults);
  }
  __syncwarp();
  if (!is_value && a.angles != nullptr) rotate_pairs(a, x, row, lane);
  if (is_query) {
    std::byte* to = a.q + (row * a.q_stride + head * dim) * element_bytes(a.dtype);
    for (int i = lane; i < a.rope_dims; i += kWarpSize) store_element(to, a.dtype, i, x[i]);
    return;
  }
  const int position = a.batch.start[sequence] + row - a.batch.first_row[sequence];
  const int block = a.batch.block_table[static_cast<int64_t>(sequence) * a.batch.table_stride +
                                        position / kKvBlockTokens];
  std::byte* page = (is_value ? a.kv.v() : a.kv.k()) + block * a.block_bytes +
                    static_cast<int64_t>(kv_head) * a.page_bytes;
  store_row<kType>(a, is_value, x, page, position % kKvBlockTokens, lane);
}

}  // namespace

void rope_and_append(const AppendCall& call, cudaStream_t stream) {
  const KvLayerView& kv = call.kv;
  const DType type = call.k.dtype;
  const bool rope = call.angles != nullptr;
  SPW_CHECK(kv.head_dim > 0 && kv.head_dim <= 256 && kv_type_supports(kv.type, kv.head_dim) &&
                kv.kv_heads > 0,
            kInternal, "kv append: {} heads of {}", kv.kv_heads, kv.head_dim);
  SPW_CHECK(type == call.v.dtype && (!rope || type == call.q.dtype) &&
                (type == DType::kF16 || type == DType::kBF16 || type == DType::kF32),
            kInternal, "kv append: rows of {} and {}", dtype_name(type), dtype_name(call.v.dtype));
  const int64_t columns = int64_t{kv.kv_heads} * kv.head_dim;
  SPW_CHECK(call.k.cols == columns && call.v.cols == columns && call.k.rows == call.v.rows,
            kInternal, "kv append: k [{}, {}] and v [{}, {}] for {} columns", call.k.rows,
            call.k.cols, call.v.rows, call.v.cols, columns);
  SPW_CHECK(
      !rope || (call.rope_dims > 0 && call.rope_dims % 2 == 0 && call.rope_dims <= kv.head_dim &&
                call.q.rows == call.k.rows && call.q.cols % kv.head_dim == 0),
      kInternal, "rope: {} dims of heads of {}", call.rope_dims, kv.head_dim);
  if (call.k.rows == 0 || call.batch.sequences == 0) return;

  const KvPageLayout layout(kv.type, kv.head_dim);
  const AppendArgs args = {
      .q = call.q.data,
      .k = call.k.data,
      .v = call.v.data,
      .q_stride = call.q.stride,
      .k_stride = call.k.stride,
      .v_stride = call.v.stride,
      .dtype = type,
      .angles = call.angles,
      .angles_stride = call.angles_stride,
      .rope_dims = rope ? call.rope_dims : 0,
      .interleaved = call.style == RopeStyle::kInterleaved,
      .kv = {{kv.k, kv.v}, call.planes},
      .block_bytes = kv.block_bytes(),
      .page_bytes = static_cast<int>(layout.bytes),
      .shape = PageShape(layout),
      .q_heads = rope ? static_cast<int>(call.q.cols / kv.head_dim) : 0,
      .kv_heads = kv.kv_heads,
      .rows = static_cast<int>(call.k.rows),
      .batch = call.batch,
      .faults = {call.faults, kv.layer},
  };
  const int heads = args.q_heads + 2 * args.kv_heads;
  const dim3 grid(static_cast<unsigned>(args.rows),
                  static_cast<unsigned>((heads + kWarps - 1) / kWarps));
  const dim3 block(kWarps * kWarpSize);
  switch (kv.type) {
    case KvType::kF32:
      return launch(rope_and_append_kernel<KvType::kF32>, grid, block, 0, stream, args);
    case KvType::kF16:
      return launch(rope_and_append_kernel<KvType::kF16>, grid, block, 0, stream, args);
    case KvType::kBf16:
      return launch(rope_and_append_kernel<KvType::kBf16>, grid, block, 0, stream, args);
    case KvType::kInt8:
      return launch(rope_and_append_kernel<KvType::kInt8>, grid, block, 0, stream, args);
    case KvType::kInt4:
      return launch(rope_and_append_kernel<KvType::kInt4>, grid, block, 0, stream, args);
  }
}

}  // namespace spillway::cuda
