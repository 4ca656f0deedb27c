// SPDX-License-Identifier: Apache-2.0
// What placing things needs to know of a machine that is not here: as its devices would say it.
#pragma once

#include "plan/device_traits.h"
#include "plan/hardware.h"
#include "plan/memory_fit.h"

namespace spillway {

DeviceTraits traits_of_machine(const Hardware& hardware, const Budgets& budgets);

}  // namespace spillway
