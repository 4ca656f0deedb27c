// SPDX-License-Identifier: Apache-2.0
// What the kernels of quant_linear() take, between the file that chooses and those that hold them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/linear_quant.h"

namespace spillway::cuda {

inline constexpr int kQuantSlices = 8;      // of K
inline constexpr int kQuantWarps = 8;       // of a block
inline constexpr int kQuantWarpGroups = 2;  // groups of 16 rows that a warp takes at once

struct QuantPart {
  const uint8_t* data;
  const float* bias;
  void* out;
  int groups;  // whole groups of 16 rows
  int rows;
};

struct QuantArgs {
  QuantPart parts[3];
  int count;
  const void* x;     // half [tokens, k]
  int64_t x_stride;  // elements
  int tokens;
  int k;
  int64_t out_stride;  // elements
  DType out_dtype;
  Epilogue epilogue;
  ActivationKind activation;

  // Of the grouped kernel: items are groups in the order they are worked off, gate and up in turn
  // when gated.
  int items;
  int64_t group_bytes;  // bytes of 16 rows
  int cluster;
  int stages;

  __host__ __device__ bool gated() const { return epilogue == Epilogue::kGated; }
  // Slices of K that a block has, and sets of kQuantWarpGroups groups.
  __host__ __device__ int block_slices() const { return kQuantSlices / cluster; }
  __host__ __device__ int block_sets() const { return kQuantWarps / block_slices(); }
};

// What the device offers; asked once.
struct QuantDeviceLimits {
  int sms = 0;
  int shared_bytes = 0;  // a block may have
  bool clusters = false;
};

// Chooses the shape of the launch and launches, for tokens <= kQuantLinearTokens. False where not
// even the smallest shape fits this device with so many tokens.
using QuantLauncher = bool (*)(QuantArgs args, const QuantLinearTuning& tuning,
                               const QuantDeviceLimits& limits, cudaStream_t stream);

// Each defined beside its kernels: linear_quant_four.cu, _five_eight.cu, _k.cu, _k_split.cu.
bool launch_quant_q4_0(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q4_1(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_g4(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q5_0(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q5_1(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q8_0(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q3_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q4_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q5_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q6_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);

}  // namespace spillway::cuda
