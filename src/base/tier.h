// SPDX-License-Identifier: Apache-2.0
// The kinds of memory in which bytes can be.
#pragma once

#include <cstdint>

namespace spillway {

// On a machine without an accelerator, host memory is the device's memory (kDevice).
enum class Tier : uint8_t { kDevice, kHost, kDisk };
inline constexpr int kTierCount = 3;

}  // namespace spillway
