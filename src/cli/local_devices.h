// SPDX-License-Identifier: Apache-2.0
// Makes the devices of this machine; the only place that knows how each is made.
#pragma once

#include "engine/device_factory.h"

namespace spillway {

const DeviceFactory& local_devices();

}  // namespace spillway
