// SPDX-License-Identifier: Apache-2.0
// What a model's weights take of each memory, known before they are loaded.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/tier.h"
#include "device/device.h"
#include "memory/weight_load_options.h"
#include "model/model.h"
#include "plan/plan.h"
#include "runtime/model_weights.h"

namespace spillway {

// By tier, each weight with what aligns it.
std::array<uint64_t, kTierCount> bytes_by_home(const Model& model, const std::vector<Tier>& homes);

// What streamed weights of a layer take in device memory. Such as are read in place take whole
// blocks.
uint64_t streamed_bytes(std::span<const StreamedWeight> weights);

struct WeightNeeds {
  uint64_t device = 0, host = 0, disk = 0;
  uint64_t mapped = 0;        // of the host's: pages of files, which other processes may share
  uint64_t slot = 0;          // on the device: the largest layer's share that streams through
  int streamed_layers = 0;    // that have one
  bool from_disk = false;     // some of it comes from there
  uint64_t loading_host = 0;  // of host memory, while they are written to disk
};
WeightNeeds weight_needs(const Device& device, const Model& model, const TierShares& shares,
                         const WeightLoadOptions& options);

}  // namespace spillway
