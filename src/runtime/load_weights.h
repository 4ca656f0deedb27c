// SPDX-License-Identifier: Apache-2.0
// Weights on their way from files into memory of their own: copied, packed or quantized.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "device/device.h"
#include "memory/weight_load_options.h"
#include "model/model.h"
#include "tensor/tensor_view.h"

namespace spillway {

// A weight, the layout it should have, and the weight.bytes() where it goes.
struct WeightTarget {
  const BoundWeight* weight;
  WeightLayout layout;
  std::byte* to;
};

// Reads piece by piece and makes each what it should be behind the reads of the next ones, with the
// host's number of threads: a plain weight whose type in memory is G4 is quantized, one that
// is F32 there is widened, kGroups16 is packed; where the device's memory is out of the host's
// reach, the result is copied there. Throws kInvalidArgument, naming file and offset, for weights
// that G4 cannot hold (NaN, infinity, beyond F16), and what stream_extents() throws.
// `host` has the staging memory and the threads; it may be the device.
void load_weights(Device& device, Device& host, std::span<const std::filesystem::path> paths,
                  std::span<const WeightTarget> targets, const WeightLoadOptions& options);

}  // namespace spillway
