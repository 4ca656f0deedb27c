// SPDX-License-Identifier: Apache-2.0
// Measures how CPU and link should share the linear ops of a model, both busy as in a step:
// HeteGen's alpha benchmark (4.4).
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "measure/measure_pace.h"
#include "model/model.h"
#include "plan/hardware.h"
#include "plan/split_curve.h"

namespace spillway {

// Returns the linear ops of a model's layers and head, each shape once.
std::vector<SplitShape> split_shapes(const Model& model);

struct MeasureSplitsOptions {
  std::vector<int64_t> tokens = {1, 8, 64, 512};
  uint64_t rotate_bytes = uint64_t{768} << 20;  // of a matrix's copies; more than caches hold
  double point_s = 0.12;                        // seconds for one share of an op's rows on the CPU
};

// Begins with the shares of equation 9, from what is known of the machine, and measures around
// them. Returns a curve for each shape and number of tokens. Uses host memory, pinned if possible.
// Throws kOutOfMemory, kCancelled.
std::vector<SplitCurve> measure_splits(Device& host, Device& device, const Hardware& hardware,
                                       const std::vector<SplitShape>& shapes,
                                       const MeasureSplitsOptions& options, MeasurePace& pace);

}  // namespace spillway
