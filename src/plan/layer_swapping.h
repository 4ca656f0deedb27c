// SPDX-License-Identifier: Apache-2.0
// Decides how many layers are swapped (Pie, 3.1), as --kv-expansion requests it: their KV lives in
// host memory and is on the device only for their part of a step.
#pragma once

#include <cstdint>

#include "plan/footprint.h"
#include "plan/kv_expansion.h"
#include "plan/memory_fit.h"
#include "tensor/layer_swap_sizes.h"

namespace spillway {

// Returns the number of swapped layers that is requested, or 0 if no KV is on the device. Throws
// kInvalidArgument if that number of layers gains no room, or is not less than the number of layers
// that have KV.
int requested_swapped_layers(const KvExpansion& expansion, const LayerSwapSizes& sizes);

// Returns the most layers that a run may swap if it finds the number itself. `needs` is its
// footprint without swapped layers; `to_device_per_s` is the link's rate to the device in bytes per
// second.
int most_swapped_layers(const Footprint& needs, const Budgets& budgets, double to_device_per_s);

}  // namespace spillway
