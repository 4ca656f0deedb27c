// SPDX-License-Identifier: Apache-2.0
// What this machine does, measured now.
#pragma once

#include <filesystem>

#include "device/device.h"
#include "engine/session_services.h"
#include "plan/hardware.h"

namespace spillway {

inline constexpr double kProfileSeconds = 45;

// Within about so many seconds; tells how far it is. `device`: null where the host computes. Throws
// kCancelled.
Hardware measure_this_machine(Device& host, Device* device, const std::filesystem::path& disk_dir,
                              double seconds, const SessionServices& services);

}  // namespace spillway
