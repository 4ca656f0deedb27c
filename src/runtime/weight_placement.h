// SPDX-License-Identifier: Apache-2.0
// Which weights live where: decided from the model and a plan's shares, before anything is loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/tier.h"
#include "device/device.h"
#include "model/model.h"
#include "plan/plan.h"

namespace spillway {

class IoQueue;

// Homes are whole matrices: a layer has six or seven, a model hundreds, so shares come out within a
// percent, and a matrix is computed by one call wherever it lives, which keeps results bit-equal.
struct WeightPlacement {
  TierShares shares;
  Device* host = nullptr;          // whose memory is the host's; null: the device itself
  IoQueue* queue = nullptr;        // the engine's; needed for weights that live on disk
  std::filesystem::path disk_dir;  // of weights that live on disk, other than in the model's file
  uint64_t disk_budget = ~uint64_t{0};

  Device& host_beside(Device& device) const { return host == nullptr ? device : *host; }
};

// A home for each of model.weights. Of the layers' matrices each tier has its share, spread evenly
// over the layers, so that every layer moves about as many bytes; everything else (norms, biases,
// embeddings, head) is read in every step or is small, and lives on the device. What would live in
// host memory does so, too, where that is the device's.
std::vector<Tier> weight_homes(const Device& device, const Model& model, TierShares shares);

// The layout that a weight has in memory.
WeightLayout layout_on(const Device& device, const Model& model, const BoundWeight& weight);
// Whether a step can use a weight as the model's file has it.
bool is_as_stored(const BoundWeight& weight, WeightLayout layout);

// Of bytes in an arena or a slot.
inline constexpr uint64_t kWeightAlignment = 256;
uint64_t aligned_weight_bytes(int64_t bytes);

}  // namespace spillway
