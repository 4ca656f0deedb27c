// SPDX-License-Identifier: Apache-2.0
// The simple rule for where things go when nobody says: fill the fastest memory first. It always
// fits, or says what is missing; finding the best plan is the planner's work.
#pragma once

#include "plan/footprint.h"

namespace spillway {

// All on the device if it fits. Otherwise KV goes to host memory if it would take more than a
// quarter of the device, then weights fill what is left of the device, then the host, then the
// disk. What kernels take besides is left free. Throws kOutOfMemory, saying which memory is too
// small for what.
Plan fill_from_the_top(const Model& model, const RunSize& size, const DeviceTraits& traits,
                       const Budgets& budgets);

}  // namespace spillway
