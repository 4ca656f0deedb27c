// SPDX-License-Identifier: Apache-2.0
#include "cuda/dequantize/dequantize.h"

#include <algorithm>

#include "base/error.h"
#include "cuda/dequantize/quant_decode.cuh"
#include "cuda/kernel/launch.cuh"

namespace spillway::cuda {
namespace {

constexpr int kThreads = 256;

struct DequantizeArgs {
  const uint8_t* matrix;
  int64_t row_bytes;
  int64_t first_row;
  int64_t rows;
  int64_t grouped_rows;
  int chunks;  // chunks of eight columns in a row
  void* out;
  int64_t stride;
};

__device__ __forceinline__ uint32_t half_pair(float a, float b) {
  const auto saturated = [](float v) { return fminf(fmaxf(v, -65504.0F), 65504.0F); };
  const __half2 pair = __floats2half2_rn(saturated(a), saturated(b));
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ __forceinline__ uint32_t bfloat16_pair(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <class Out>
__device__ __forceinline__ void store8(Out* to, const float v[8]) {
  uint4* wide = reinterpret_cast<uint4*>(to);
  if constexpr (std::is_same_v<Out, __half>) {
    *wide = {half_pair(v[0], v[1]), half_pair(v[2], v[3]), half_pair(v[4], v[5]),
             half_pair(v[6], v[7])};
  } else if constexpr (std::is_same_v<Out, __nv_bfloat16>) {
    *wide = {bfloat16_pair(v[0], v[1]), bfloat16_pair(v[2], v[3]), bfloat16_pair(v[4], v[5]),
             bfloat16_pair(v[6], v[7])};
  } else {
    reinterpret_cast<float4*>(to)[0] = {v[0], v[1], v[2], v[3]};
    reinterpret_cast<float4*>(to)[1] = {v[4], v[5], v[6], v[7]};
  }
}

// A warp takes neighbouring columns of one row, so that stores are whole lines; the warps of a
// thread block take the rows of a group, so that the group's bytes, which are contiguous, are
// fetched once.
template <class Block, class Out>
__global__ void __launch_bounds__(512) dequantize_kernel(DequantizeArgs a) {
  wait_for_previous();
  launch_dependents();
  const int64_t i = static_cast<int64_t>(blockIdx.y) * 16 + threadIdx.y;
  if (i >= a.rows) return;
  Out* out = static_cast<Out*>(a.out) + i * a.stride;
  constexpr int kUnroll = 4;
  const int base = static_cast<int>(blockIdx.x * kUnroll * 32 + threadIdx.x);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int chunk = base + u * 32;
    if (chunk >= a.chunks) continue;
    float values[8];
    decode8_of_row<Block>(a.matrix, a.row_bytes, a.first_row + i, a.grouped_rows,
                          static_cast<int64_t>(chunk) * 8, values);
    store8(out + static_cast<int64_t>(chunk) * 8, values);
  }
}

struct EmbedArgs {
  const uint8_t* table;
  int64_t row_bytes;
  int64_t grouped_rows;
  int64_t cols;
  const int32_t* ids;
  float* out;
  int64_t stride;
  bool accumulate;
};

template <class Block>
__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedArgs a) {
  wait_for_previous();
  launch_dependents();
  const int64_t row = a.ids[blockIdx.y];
  float* out = a.out + blockIdx.y * a.stride;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (column >= a.cols) return;
  const int count = static_cast<int>(min(a.cols - column, static_cast<int64_t>(8)));
  float values[8];
  if constexpr (requires { Block::kBytes; }) {  // plain types: rows of any length
    const uint8_t* from = a.table + row * a.row_bytes + column * (block_bytes<Block>() / 8);
    for (int i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<Block, PlainF32>) {
        values[i] = __ldg(reinterpret_cast<const float*>(from) + i);
      } else if constexpr (std::is_same_v<Block, PlainF16>) {
        values[i] = load_half(from + 2 * i);
      } else {
        values[i] = __uint_as_float(load_pair(from + 2 * i) << 16);
      }
    }
  } else {
    decode8_of_row<Block>(a.table, a.row_bytes, row, a.grouped_rows, column, values);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) out[column + i] = a.accumulate ? out[column + i] + values[i] : values[i];
  }
}

bool aligned(const void* address, size_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

}  // namespace

void dequantize_rows(const WeightView& w, int64_t first_row, const Activations& out,
                     cudaStream_t stream) {
  SPW_ASSERT(is_quantized(w.dtype) && out.cols == w.cols);
  SPW_ASSERT(first_row >= 0 && first_row + out.rows <= w.rows);
  SPW_ASSERT(aligned(out.data, 16) && row_bytes(out.dtype, out.stride) % 16 == 0);
  SPW_ASSERT(aligned(w.data, w.layout == WeightLayout::kGroups16 ? 16 : 2));
  if (out.rows == 0 || out.cols == 0) return;
  const int chunks = static_cast<int>(w.cols / 8);
  const DequantizeArgs args{reinterpret_cast<const uint8_t*>(w.data),
                            w.row_bytes(),
                            first_row,
                            out.rows,
                            w.grouped_rows(),
                            chunks,
                            out.data,
                            out.stride};
  with_stored_block(w.dtype, [&]<class Block>() {
    if constexpr (!requires { Block::kBytes; }) {
      const auto go = [&]<class Out>() {
        // gridDim.y is at most 65535, so longer ranges take several launches.
        constexpr int64_t kRowsPerLaunch = 65535 * 16;
        for (int64_t begin = 0; begin < out.rows; begin += kRowsPerLaunch) {
          DequantizeArgs part = args;
          part.first_row += begin;
          part.rows = std::min(out.rows - begin, kRowsPerLaunch);
          part.out = static_cast<Out*>(args.out) + begin * args.stride;
          launch(dequantize_kernel<Block, Out>,
                 dim3((chunks + 127) / 128, static_cast<unsigned>((part.rows + 15) / 16)),
                 dim3(32, 16), 0, stream, part);
        }
      };
      if (out.dtype == DType::kF16) return go.template operator()<__half>();
      if (out.dtype == DType::kBF16) return go.template operator()<__nv_bfloat16>();
      SPW_ASSERT(out.dtype == DType::kF32);
      go.template operator()<float>();
    }
  });
}

void embed_rows(const WeightView& table, const int32_t* ids, const Activations& out,
                LinearMode mode, cudaStream_t stream) {
  SPW_ASSERT(out.dtype == DType::kF32 && out.cols == table.cols && out.rows <= 65535);
  SPW_ASSERT(aligned(table.data, table.layout == WeightLayout::kGroups16 ? 16
                                 : table.dtype == DType::kF32            ? 4
                                                                         : 2));
  if (out.rows == 0 || out.cols == 0) return;
  const EmbedArgs args{reinterpret_cast<const uint8_t*>(table.data),
                       table.row_bytes(),
                       table.grouped_rows(),
                       table.cols,
                       ids,
                       reinterpret_cast<float*>(out.data),
                       out.stride,
                       mode == LinearMode::kAccumulate};
  const auto columns = static_cast<unsigned>((table.cols + 8 * kThreads - 1) / (8 * kThreads));
  with_stored_block(table.dtype, [&]<class Block>() {
    launch(embed_kernel<Block>, dim3(columns, static_cast<unsigned>(out.rows)), dim3(kThreads), 0,
           stream, args);
  });
}

}  // namespace spillway::cuda
