// SPDX-License-Identifier: Apache-2.0
// Computes the traits of a device from a machine's description, for a machine on which this program
// does not run.
#pragma once

#include "plan/device_traits.h"
#include "plan/hardware.h"
#include "plan/memory_fit.h"

namespace spillway {

DeviceTraits traits_of_machine(const Hardware& hardware, const Budgets& budgets);

}  // namespace spillway
