// SPDX-License-Identifier: Apache-2.0
// Reads one small tensor while a spec is being made.
#pragma once

#include <cstdint>
#include <vector>

#include "storage/tensor_index.h"

namespace spillway {

// The tensor's elements as floats. Throws kInvalidArgument unless it has exactly `count` elements.
std::vector<float> read_tensor_f32(const ModelFiles& files, const TensorInfo& tensor,
                                   int64_t count);

}  // namespace spillway
