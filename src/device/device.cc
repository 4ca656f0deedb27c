// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <cstring>

#include "base/error.h"

namespace spillway {

void Device::copy_to_device(std::byte* to, const std::byte* host, size_t bytes) {
  SPW_ASSERT(host_visible());
  std::memcpy(to, host, bytes);
}

void Device::copy_to_host(std::byte* host, const std::byte* from, size_t bytes) {
  SPW_ASSERT(host_visible());
  std::memcpy(host, from, bytes);
}

PartitionedAttention& Device::partitioned_attention() {
  fail(ErrorCode::kUnsupported, "{} does not attend to sequences in parts", info().name);
}

}  // namespace spillway
