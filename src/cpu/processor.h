// SPDX-License-Identifier: Apache-2.0
// Describes the host's processor.
#pragma once

#include <string>

namespace spillway {

// Returns a name such as "Neoverse-V1" or "Intel(R) Xeon(R) Platinum 8480C"; the architecture's
// name if the kernel knows no other.
std::string processor_name();

// Returns the instruction sets that matter to kernels, and the one the vector code runs on: "asimd
// dotprod i8mm bf16; vectors: NEON".
std::string processor_features();

}  // namespace spillway
