// SPDX-License-Identifier: Apache-2.0
// What the host is: its processor and its memory.
#pragma once

#include <cstdint>
#include <string>

namespace spillway {

// "Neoverse-V1", "Intel(R) Xeon(R) Platinum 8480C"; the architecture's name where the kernel says
// no more.
std::string processor_name();

// The instruction sets that matter to kernels, and the one the vector code runs on: "asimd dotprod
// i8mm bf16; vectors: NEON".
std::string processor_features();

// From the kernel; 0 where it does not say. `available` is what can be had without swapping.
struct HostMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;
};
HostMemory host_memory();

}  // namespace spillway
