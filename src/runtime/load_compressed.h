// SPDX-License-Identifier: Apache-2.0
// Weights that are stored plain and become 4-bit groups on their way into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "device/device.h"
#include "memory/resident_weights.h"
#include "model/model.h"
#include "tensor/tensor_view.h"

namespace spillway {

// A weight of type G4 whose file has a plain one, and the weight.bytes() where it goes.
struct CompressedWeight {
  const BoundWeight* weight;
  std::byte* to;
  WeightLayout layout;
};

// Reads, quantizes and packs piece by piece with the device's number of threads. Throws
// kInvalidArgument, naming file and offset, for weights that G4 cannot hold (NaN, infinity, beyond
// F16), and what stream_extents() throws.
void load_compressed(Device& device, std::span<const std::filesystem::path> paths,
                     std::span<const CompressedWeight> weights, const WeightLoadOptions& options);

}  // namespace spillway
