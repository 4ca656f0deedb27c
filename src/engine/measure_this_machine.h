// SPDX-License-Identifier: Apache-2.0
// Measures how fast this machine is.
#pragma once

#include <filesystem>

#include "device/device.h"
#include "engine/session_services.h"
#include "plan/hardware.h"

namespace spillway {

inline constexpr double kProfileSeconds = 45;

// Measures for about `seconds` seconds and reports its progress. `device` is null if the host
// computes. Throws kCancelled.
Hardware measure_this_machine(Device& host, Device* device, const std::filesystem::path& disk_dir,
                              double seconds, const SessionServices& services);

}  // namespace spillway
