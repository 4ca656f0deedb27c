// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_traits.h"

#include "memory/piece_loop.h"

namespace spillway {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

}  // namespace

DeviceTraits traits_of(const Device& device, const Device& host) {
  const DeviceInfo& info = device.info();
  const auto threads = static_cast<uint64_t>(info.threads);
  DeviceTraits traits;
  traits.host_visible = device.host_visible();
  traits.memory_bytes = static_cast<uint64_t>(info.memory_bytes);
  if (&host != &device) traits.host_memory_bytes = static_cast<uint64_t>(host.info().memory_bytes);
  traits.allocation_unit = info.allocation_unit;
  for (const DType type : kAllDTypes) {
    const auto i = static_cast<size_t>(type);
    traits.layouts[i] = device.preferred_layout(type, kGroupRows, kGroupRows);
    traits.activation_types[i] = device.activation_type(type);
  }
  // On a CPU panels of each worker; on others what libraries take, and scratch that grows.
  traits.workspace_bytes = traits.host_visible ? (4 + threads) * kMiB : 256 * kMiB;
  if (!traits.host_visible)
    traits.host_workspace_bytes = static_cast<uint64_t>(4 + host.info().threads) * kMiB;
  traits.decoded_tokens = traits.host_visible ? 0 : 64;
  // Pieces of files on their way. Beside a device, also its staging buffers where the system lets
  // it pin nothing.
  const auto readers = static_cast<uint64_t>(host.info().threads + kPiecesAhead);
  traits.loading_bytes = (traits.host_visible ? 16 : 64) * kMiB + readers * 2 * kMiB;
  return traits;
}

}  // namespace spillway
