// SPDX-License-Identifier: Apache-2.0
// Reads the traits that plans need to know from a device of this machine.
#pragma once

#include "device/device.h"
#include "plan/device_traits.h"

namespace spillway {

// `host` is the CPU beside the device, or the device itself if that is the CPU.
DeviceTraits traits_of(const Device& device, const Device& host);
inline DeviceTraits traits_of(const Device& device) { return traits_of(device, device); }

}  // namespace spillway
