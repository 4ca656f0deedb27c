// SPDX-License-Identifier: Apache-2.0
// What placing things and counting bytes need to know of a device, which need not be here.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace spillway {

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
