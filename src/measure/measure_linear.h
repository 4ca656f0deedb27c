// SPDX-License-Identifier: Apache-2.0
// Measures on a device which kind of kernel multiplies each shape of a model fastest.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/tuning.h"
#include "runtime/model_weights.h"
#include "tensor/tensor_view.h"

namespace spillway {

struct MeasureOptions {
  double budget_s = 1.5;  // about this long for all shapes together
  // Shapes done, of how many.
  std::function<void(uint64_t done, uint64_t total)> progress;
  const std::atomic<bool>* cancel = nullptr;  // set to true: measuring throws kCancelled soon
  std::function<double()> seconds_now;        // a clock; none: the steady one
};

// What linear() multiplies with in a step, layer by layer.
std::vector<WeightView> multiplied_matrices(const ModelWeights& weights);

// The inflection points of every distinct shape in `matrices`. Matrices of one shape are taken in
// turn, so that they come from memory as they do in a step; large ones in pieces of whole groups.
// The best of a few repeats counts: what disturbs a measurement makes it longer. The device's
// memory must be the host's; it is left without a tuning table. Throws kOutOfMemory, kCancelled.
TuningTable measure_linear(Device& device, std::span<const WeightView> matrices,
                           const MeasureOptions& options = {});

}  // namespace spillway
