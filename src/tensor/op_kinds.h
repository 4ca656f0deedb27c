// SPDX-License-Identifier: Apache-2.0
// The kinds of layers a network is made of: said by a model's spec, computed by a device.
#pragma once

#include <cstdint>

namespace spillway {

enum class NormKind : uint8_t { kRms, kLayer };
enum class ActivationKind : uint8_t { kRelu, kGelu, kGeluTanh, kSilu };
// Which elements of a head are rotated together: (2i, 2i + 1), or (i, i + rotary_dim / 2).
enum class RopeStyle : uint8_t { kInterleaved, kHalves };

}  // namespace spillway
