// SPDX-License-Identifier: Apache-2.0
// Which machine plans are made for: this one, as well as it is known.
#pragma once

#include <cstdint>
#include <string>

#include "plan/hardware.h"

namespace spillway {

// A machine with this GPU ("": none) and so much memory, as well as it is known here.
Hardware this_machine(const std::string& gpu_name, uint64_t gpu_memory, uint64_t host_memory);

}  // namespace spillway
