// SPDX-License-Identifier: Apache-2.0
#include "plan/machine_traits.h"

#include "tensor/packed_layout.h"

namespace spillway {
namespace {

// The number of host threads if a machine's file does not have it.
constexpr int kUsualThreads = 16;

}  // namespace

// The figures are those of runtime/device_traits.cc for devices that are present.
DeviceTraits traits_of_machine(const Hardware& hardware, const Budgets& budgets) {
  DeviceTraits traits;
  const bool discrete = hardware.has_device();
  traits.host_visible = !discrete;
  traits.memory_bytes = discrete ? budgets.device : budgets.host;
  if (discrete) traits.host_memory_bytes = budgets.host;
  traits.allocation_unit = discrete ? 512 : 1;
  for (const DType type : kAllDTypes) {
    const auto i = static_cast<size_t>(type);
    traits.layouts[i] = can_pack(type) ? WeightLayout::kGroups16 : WeightLayout::kRows;
    const bool as_it_is = type == DType::kF32 || type == DType::kBF16;
    traits.activation_types[i] = hardware.gpu.has_value() && !as_it_is ? DType::kF16
                                 : hardware.gpu.has_value()            ? type
                                                                       : DType::kF32;
  }
  const int threads = hardware.host.threads > 0 ? hardware.host.threads : kUsualThreads;
  traits.workspace_bytes = discrete ? kGpuWorkspaceBytes : host_workspace_bytes(threads);
  if (discrete) traits.host_workspace_bytes = host_workspace_bytes(threads);
  traits.decoded_tokens = discrete ? 64 : 0;
  traits.loading_bytes = loading_bytes(discrete, threads);
  return traits;
}

}  // namespace spillway
