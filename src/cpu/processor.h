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

// From the kernel and, in a container, its limit.
struct HostMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;  // what can be had without swapping
  int64_t process_bytes = 0;    // memory of its own that this process has touched
};
HostMemory host_memory();

}  // namespace spillway
