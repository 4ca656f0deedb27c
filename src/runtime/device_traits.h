// SPDX-License-Identifier: Apache-2.0
// What plans need to know of a device that is here.
#pragma once

#include "device/device.h"
#include "plan/device_traits.h"

namespace spillway {

DeviceTraits traits_of(const Device& device);

}  // namespace spillway
