// SPDX-License-Identifier: Apache-2.0
// Moves weights to where a plan wants them, and from there to where the next plan finds them.
//
// While a plan runs, ModelWeights owns the weights, and WeightStream brings those that live
// elsewhere to the device as steps need them. Between two plans KeptWeights keeps what the next
// plan may want.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "device/device.h"
#include "memory/weight_load_options.h"
#include "model/model.h"
#include "runtime/kept_weights.h"
#include "runtime/model_weights.h"
#include "runtime/weight_placement.h"

namespace spillway {

// Brings every weight of `model` to its home, the memory in which it lives: from `kept` if it is
// there (the rest of `kept` is released), else from the model's files. Without files (`paths` is
// empty) weights are random. If all weights are wanted as the files have them, they are mapped.
// Throws what FileSource and WeightFileFiller throw, and kOutOfMemory if a tier is too small.
ModelWeights load_weights(Device& device, const Model& model,
                          std::span<const std::filesystem::path> paths,
                          const WeightLoadOptions& options, const WeightPlacement& placement = {},
                          KeptWeights kept = {});

// Frees all memory except what the next plan may want: weights in host memory or in temporary files
// are handed on, weights on the device are copied to host memory. `next` is that plan's placement.
// Once it has allocated its own memory, at most `host_budget` of host memory is in use.
KeptWeights keep_weights(Device& device, const Model& model, ModelWeights weights,
                         const WeightPlacement& next, uint64_t host_budget);

}  // namespace spillway
