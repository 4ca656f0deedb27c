// SPDX-License-Identifier: Apache-2.0
// What the host's processor is.
#pragma once

#include <string>

namespace spillway {

// "Neoverse-V1", "Intel(R) Xeon(R) Platinum 8480C"; the architecture's name where the kernel says
// no more.
std::string processor_name();

// The instruction sets that matter to kernels, and the one the vector code runs on: "asimd dotprod
// i8mm bf16; vectors: NEON".
std::string processor_features();

}  // namespace spillway
