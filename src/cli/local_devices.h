// SPDX-License-Identifier: Apache-2.0
// The devices of this machine: the one place that knows how each is made.
#pragma once

#include "engine/device_factory.h"

namespace spillway {

const DeviceFactory& local_devices();

}  // namespace spillway
