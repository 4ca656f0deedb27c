// SPDX-License-Identifier: Apache-2.0
// Measures how fast bytes move between host memory and a device's own, by the size of a transfer,
// alone and while the CPU reads memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "measure/measure_pace.h"
#include "plan/hardware.h"

namespace spillway {

struct LinkSizes {
  size_t largest = size_t{64} << 20;  // largest transfer; at least kSmallestTransfer
  uint64_t kv_bytes = 0;              // KV that the CPU attends to meanwhile
};
inline constexpr size_t kSmallestTransfer = size_t{64} << 10;

// Sets to_device, to_host, transfer_s, pin_bytes_per_s, link_beside_cpu, cpu_beside_link and
// meeting_s. Throws kOutOfMemory.
void measure_links(Device& host, Device& device, const LinkSizes& sizes, MeasurePace& pace,
                   double share, Hardware& hardware);

}  // namespace spillway
