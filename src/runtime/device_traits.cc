// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_traits.h"

#include "memory/piece_loop.h"

namespace spillway {

static_assert(kLoadingPiecesAhead == kPiecesAhead && 2 * kPieceBytes == uint64_t{1} << 21);

DeviceTraits traits_of(const Device& device, const Device& host) {
  const DeviceInfo& info = device.info();
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
  const int host_threads = host.info().threads;
  traits.workspace_bytes =
      traits.host_visible ? host_workspace_bytes(info.threads) : kGpuWorkspaceBytes;
  if (!traits.host_visible) traits.host_workspace_bytes = host_workspace_bytes(host_threads);
  traits.decoded_tokens = traits.host_visible ? 0 : 64;
  traits.loading_bytes = loading_bytes(!traits.host_visible, host_threads);
  return traits;
}

}  // namespace spillway
