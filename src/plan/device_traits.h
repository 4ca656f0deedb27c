// SPDX-License-Identifier: Apache-2.0
// What placing things and counting bytes need to know of a device, which need not be here.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace spillway {

// Pieces of files that are being read while every thread of the host works on another.
inline constexpr int kLoadingPiecesAhead = 4;
// Workspace of the host's kernels: panels for each thread.
inline constexpr uint64_t host_workspace_bytes(int threads) {
  return (uint64_t{4} << 20) + (static_cast<uint64_t>(threads) << 20);
}
// Host memory that loading takes while weights are read: pieces of files, and beside a GPU its
// staging buffers, which count here where the system lets it pin nothing.
inline constexpr uint64_t loading_bytes(bool has_device, int threads) {
  return (uint64_t{has_device ? 64U : 16U} << 20) +
         (static_cast<uint64_t>(threads + kLoadingPiecesAhead) << 21);
}
// Workspace of a GPU's libraries, and scratch that grows.
inline constexpr uint64_t kGpuWorkspaceBytes = uint64_t{256} << 20;

struct DeviceTraits {
  bool host_visible = true;        // its memory is the host's
  uint64_t memory_bytes = 0;       // its budget
  uint64_t host_memory_bytes = 0;  // the host's, beside it
  uint64_t allocation_unit = 1;    // what its allocations are rounded up to
  // Of each type of weights: how matrices of 16 rows and more lie in memory, and what ops hand each
  // other between them.
  std::array<WeightLayout, kDTypeCount> layouts = {};
  std::array<DType, kDTypeCount> activation_types = {};
  uint64_t workspace_bytes = 0;       // of kernels and libraries, whatever they compute
  uint64_t host_workspace_bytes = 0;  // the same of the host beside it, where that has a part
  uint64_t loading_bytes = 0;         // of host memory, while weights are read
  // For more tokens than this quantized matrices become 16-bit ones first; 0: never.
  int decoded_tokens = 0;
};

}  // namespace spillway
