// SPDX-License-Identifier: Apache-2.0
#include "cli/hardware_choice.h"

namespace spillway {

Hardware this_machine(const std::string& gpu_name, uint64_t gpu_memory, uint64_t host_memory) {
  Hardware machine = nearest_hardware(gpu_name, gpu_memory, host_memory);
  if (machine.gpu) machine.gpu->memory_bytes = gpu_memory;
  machine.host.memory_bytes = host_memory;
  return machine;
}

}  // namespace spillway
