// SPDX-License-Identifier: Apache-2.0
// What the kernels of quant_linear() take, between the file that chooses and those that hold them.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/kernel_args.h"
#include "cuda/linear/linear_quant_tuning.h"

namespace spillway::cuda {

inline constexpr int kQuantDevices = 16;    // GPUs of a process, at most
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

// Where things lie in a block's shared memory, in bytes.
struct QuantShared {
  int ring;  // of all warps
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

  // Of the grouped kernel: items are groups in the order they are worked off, gate and up in turn
  // when gated.
  int items;
  int64_t group_bytes;  // bytes of 16 rows
  // The shape of its launch.
  int cluster;  // blocks that share K
  int slices;   // of K, that a block has
  int slices_log2;
  int set_items_log2;       // items that a cluster takes at once
  int sets;                 // of so many items
  int stages;               // buffers of a warp's ring
  int phases;               // in which a slice is worked off, so that x fits
  int phase_tiles;          // columns / 32 of a slice in a phase, at most
  int next_start;           // when the next kernel may, see QuantLinearTuning
  int l2_sets;              // sets of a block that are prefetched to L2, of the kernel for few
  uint32_t tokens_inverse;  // ceil(2^32 / tokens)
  int first_block;          // of the wgmma kernel: the columns of this launch, in blocks
  int blocks;
  QuantShared shared;

  __host__ __device__ bool gated() const { return epilogue == Epilogue::kGated; }
};

// What the device offers; asked once.
struct QuantDeviceLimits {
  int device = 0;
  int sms = 0;
  int shared_bytes = 0;  // a block may have
  int sm_bytes = 0;      // of shared memory
  int reserved = 0;      // of them, by each block
  bool clusters = false;
  bool wgmma = false;

  // Shared memory that each of `blocks` blocks on an SM may have.
  int shared_of(int blocks) const {
    return std::min(shared_bytes, sm_bytes / blocks - reserved) / 128 * 128;
  }
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
bool launch_quant_q2_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q3_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q4_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q5_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);
bool launch_quant_q6_k(QuantArgs, const QuantLinearTuning&, const QuantDeviceLimits&, cudaStream_t);

}  // namespace spillway::cuda
