// SPDX-License-Identifier: Apache-2.0
// Where bytes live.
#pragma once

#include <cstdint>

namespace spillway {

// On a machine without an accelerator the host's memory is the device's.
enum class Tier : uint8_t { kDevice, kHost, kDisk };
inline constexpr int kTierCount = 3;

}  // namespace spillway
