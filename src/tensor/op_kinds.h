// SPDX-License-Identifier: Apache-2.0
// The variants of layers' ops: a model's spec names them, and a device computes them.
#pragma once

#include <cstdint>

namespace spillway {

enum class NormKind : uint8_t { kRms, kLayer };
enum class ActivationKind : uint8_t { kRelu, kGelu, kGeluTanh, kSilu };
// The elements of a head that are rotated together: (2i, 2i + 1), or (i, i + rotary_dim / 2).
enum class RopeStyle : uint8_t { kInterleaved, kHalves };

}  // namespace spillway
