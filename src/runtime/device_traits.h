// SPDX-License-Identifier: Apache-2.0
// What plans need to know of a device that is here.
#pragma once

#include "device/device.h"
#include "plan/device_traits.h"

namespace spillway {

// `host` is the CPU beside it; the device itself where that is the CPU.
DeviceTraits traits_of(const Device& device, const Device& host);
inline DeviceTraits traits_of(const Device& device) { return traits_of(device, device); }

}  // namespace spillway
