// SPDX-License-Identifier: Apache-2.0
// Measures how CPU and link share the linear ops of a model, both at work as in a step: HeteGen's
// alpha benchmark (4.4).
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "measure/measure_pace.h"
#include "model/model.h"
#include "plan/hardware.h"
#include "plan/split_curve.h"

namespace spillway {

// The linear ops of a model's layers and its head, each shape once.
std::vector<SplitShape> split_shapes(const Model& model);

struct MeasureSplitsOptions {
  std::vector<int64_t> tokens = {1, 8, 64, 512};
  uint64_t rotate_bytes = uint64_t{768} << 20;  // of copies of a matrix: more than caches hold
  double point_s = 0.12;                        // of one share
};

// Begins with the shares of equation 9, by what is known of the machine, and measures around them.
// A curve for each shape and number of tokens. Takes host memory that is pinned, where it may be.
// Throws kOutOfMemory, kCancelled.
std::vector<SplitCurve> measure_splits(Device& host, Device& device, const Hardware& hardware,
                                       const std::vector<SplitShape>& shapes,
                                       const MeasureSplitsOptions& options, MeasurePace& pace);

}  // namespace spillway
