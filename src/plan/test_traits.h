// SPDX-License-Identifier: Apache-2.0
// Makes the traits of a GPU for tests that run without one.
#pragma once

#include <cstdint>

#include "plan/device_traits.h"

namespace spillway {

inline DeviceTraits gpu_traits(uint64_t workspace_bytes = 0) {
  DeviceTraits traits;
  traits.host_visible = false;
  traits.memory_bytes = uint64_t{16} << 30;
  traits.workspace_bytes = workspace_bytes;
  traits.activation_types.fill(DType::kF16);
  return traits;
}

}  // namespace spillway
