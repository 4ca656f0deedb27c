// SPDX-License-Identifier: Apache-2.0
// Moves weights: to where a plan wants them, and from there to where the next plan finds them.
//
// While a plan runs, ModelWeights owns them and WeightStream brings those that live elsewhere past
// the device, a layer at a time. Between two plans KeptWeights has what the next one may want.
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

// Brings every weight of `model` to its home: out of `kept` what is there (the rest of it is
// released), out of the model's files what is not. Without files (`paths` is empty) weights are
// random. Where all of them are wanted as the files have them, they are mapped. Throws what
// FileSource and WeightFileFiller throw, and kOutOfMemory where a tier is too small.
ModelWeights load_weights(Device& device, const Model& model,
                          std::span<const std::filesystem::path> paths,
                          const WeightLoadOptions& options, const WeightPlacement& placement = {},
                          KeptWeights kept = {});

// Gives back all memory but for what the next plan may want: what is in host memory or in a file of
// ours is handed on, what is on the device is copied to host memory. `next` is that plan's
// placement; of host memory not more than `host_budget` is in use when it takes its own.
KeptWeights keep_weights(Device& device, const Model& model, ModelWeights weights,
                         const WeightPlacement& next, uint64_t host_budget);

}  // namespace spillway
