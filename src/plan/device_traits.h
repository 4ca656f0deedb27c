// SPDX-License-Identifier: Apache-2.0
// The properties of a device that placement and memory estimates need. The device itself need not
// be present.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace spillway {

// File chunks that are read ahead while every host thread works on another chunk.
inline constexpr int kLoadingPiecesAhead = 4;
// Returns the workspace of the host's kernels, which has panels for each thread.
inline constexpr uint64_t host_workspace_bytes(int threads) {
  return (uint64_t{4} << 20) + (static_cast<uint64_t>(threads) << 20);
}
// Returns the host memory that is used while weights are read: file chunks, and beside a GPU its
// staging buffers, which count here if the system does not let it pin memory.
inline constexpr uint64_t loading_bytes(bool has_device, int threads) {
  return (uint64_t{has_device ? 64U : 16U} << 20) +
         (static_cast<uint64_t>(threads + kLoadingPiecesAhead) << 21);
}
// The workspace of a GPU's libraries and of scratch memory that grows.
inline constexpr uint64_t kGpuWorkspaceBytes = uint64_t{256} << 20;

struct DeviceTraits {
  bool host_visible = true;        // the device computes in host memory
  uint64_t memory_bytes = 0;       // the device's memory budget
  uint64_t host_memory_bytes = 0;  // the host's memory budget, if that memory is not the device's
  uint64_t allocation_unit = 1;    // allocations are rounded up to a multiple of this
  // By the type of weights: the layout in memory of matrices with 16 or more rows, and the type of
  // the activations between ops.
  std::array<WeightLayout, kDTypeCount> layouts = {};
  std::array<DType, kDTypeCount> activation_types = {};
  uint64_t workspace_bytes = 0;  // of kernels and libraries, independent of the model
  // The same for the host beside a device, if the host takes part.
  uint64_t host_workspace_bytes = 0;
  uint64_t loading_bytes = 0;  // of host memory, used while weights are read
  // With more tokens than this, quantized matrices are expanded to 16 bits before a product; 0:
  // never.
  int decoded_tokens = 0;
};

}  // namespace spillway
