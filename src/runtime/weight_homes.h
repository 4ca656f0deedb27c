// SPDX-License-Identifier: Apache-2.0
// Where each weight of a model goes on a device, and what that takes: known before loading.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/tier.h"
#include "device/device.h"
#include "memory/weight_load_options.h"
#include "model/model.h"
#include "plan/plan.h"
#include "runtime/load_weights.h"
#include "runtime/model_weights.h"

namespace spillway {

// By number in Model::weights: its home, its layout, its place where that is memory, and whether
// its bytes are there.
struct WeightHomes {
  std::vector<Tier> tiers;
  std::vector<WeightTarget> targets;
  std::vector<bool> supplied;

  // Those of a tier whose bytes are not there yet.
  std::vector<WeightTarget> left(Tier tier) const;
  bool has(Tier tier) const;
};

// As weight_homes(), of a device whose memory may be the host's.
std::vector<Tier> homes_on(const Device& device, const Model& model, TierShares shares);
WeightLayout layout_on(const Device& device, const Model& model, const BoundWeight& weight);
// Whether a step can use a weight as the model's file has it.
bool is_as_stored(const BoundWeight& weight, WeightLayout layout);

// What streamed weights of a layer take in device memory. Such as are read in place take whole
// blocks.
uint64_t streamed_bytes(std::span<const StreamedWeight> weights);

// What weights take of each memory, before they are loaded.
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
