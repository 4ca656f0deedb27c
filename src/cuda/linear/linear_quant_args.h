// SPDX-License-Identifier: Apache-2.0
// The arguments of quant_linear()'s kernels, between the file that chooses a kernel and those that
// define them.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/kernel_args.h"
#include "cuda/linear/linear_quant_tuning.h"

namespace spillway::cuda {

inline constexpr int kQuantDevices = 16;    // the most GPUs that a process uses
inline constexpr int kQuantSlices = 8;      // of K
inline constexpr int kQuantWarps = 8;       // per thread block
inline constexpr int kQuantWarpGroups = 2;  // groups of 16 rows that a warp takes at a time

struct QuantPart {
  const uint8_t* data;
  const float* bias;
  void* out;
  int groups;  // whole groups of 16 rows
  int rows;
};

// Offsets in a thread block's shared memory, in bytes.
struct QuantShared {
  int ring;  // the rings of all warps
  int barriers;
  int prepared;
  int sums;
  int received;
  int x_sums;
  int x;
  int total;
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

  // Fields of the grouped kernel: items are groups in the order in which they are computed; gate
  // and up alternate in gated calls.
  int items;
  int64_t group_bytes;  // bytes of 16 rows
  // The shape of its launch.
  int cluster;  // thread blocks that share K
  int slices;   // slices of K that a thread block has
  int slices_log2;
  int set_items_log2;       // items that a cluster takes at a time
  int sets;                 // number of these sets of items
  int stages;               // buffers of a warp's ring
  int phases;               // parts in which a slice is computed, so that x fits
  int phase_tiles;          // the most columns / 32 of a slice in a phase
  int next_start;           // when the next kernel may start, see QuantLinearTuning
  int l2_sets;              // kernel for few tokens: sets that a thread block prefetches to L2
  uint32_t tokens_inverse;  // ceil(2^32 / tokens)
  int first_block;          // wgmma kernel: first column of this launch, in quantization blocks
  int blocks;
  QuantShared shared;

  __host__ __device__ bool gated() const { return epilogue == Epilogue::kGated; }
};

// The limits of the device, which are read once.
struct QuantDeviceLimits {
  int device = 0;
  int sms = 0;
  int shared_bytes = 0;  // most that a thread block may have
  int sm_bytes = 0;      // shared memory of a multiprocessor
  int reserved = 0;      // of these, per thread block
  bool clusters = false;
  bool wgmma = false;

  // Returns the shared memory that each of `blocks` thread blocks on an SM may have.
  int shared_of(int blocks) const {
    return std::min(shared_bytes, sm_bytes / blocks - reserved) / 128 * 128;
  }
};

// Chooses the shape of the launch and launches, for tokens <= kQuantLinearTokens. Returns false if
// not even the smallest shape fits this device with that number of tokens.
using QuantLauncher = bool (*)(QuantArgs args, const QuantLinearTuning& tuning,
                               const QuantDeviceLimits& limits, cudaStream_t stream);

// Each function is defined beside its kernels: linear_quant_four.cu, _five_eight.cu, _k.cu,
// _k_split.cu.
bool launch_quant_q4_0(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q4_1(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_g4(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q5_0(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q5_1(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q8_0(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q2_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q3_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q4_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q5_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q6_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);

}  // namespace spillway::cuda
