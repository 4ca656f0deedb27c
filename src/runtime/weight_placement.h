// SPDX-License-Identifier: Apache-2.0
// Which weights live where.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "device/device.h"
#include "model/model.h"
#include "plan/plan.h"

namespace spillway {

class IoQueue;
class WeightStore;

// Homes are whole matrices: a layer has six or seven, a model hundreds, so shares come out within a
// percent, and a matrix is computed by one call wherever it lives, which keeps results bit-equal.
struct WeightPlacement {
  TierShares shares;
  Device* host = nullptr;          // whose memory is the host's; null: the device itself
  IoQueue* queue = nullptr;        // the engine's; needed for weights that live on disk
  std::filesystem::path disk_dir;  // of weights that live on disk, other than in the model's file
  uint64_t disk_budget = ~uint64_t{0};
  // Of the plan before, for the same model on the same device; null: none. What is of use is taken,
  // the rest released.
  WeightStore* kept = nullptr;
};

// A home for each of model.weights. Of the layers' matrices each tier has its share, spread evenly
// over the layers, so that every layer moves about as many bytes; everything else (norms, biases,
// embeddings, head) is read in every step or is small, and lives on the device.
std::vector<Tier> weight_homes(const Model& model, const TierShares& shares);

// Bytes by home; the largest sum of a layer's weights that do not live on the device.
struct WeightBytes {
  uint64_t in_tier[kTierCount] = {};
  uint64_t largest_streamed_layer = 0;
};
WeightBytes weight_bytes(const Model& model, const std::vector<Tier>& homes);

// Of bytes in an arena or a slot.
inline constexpr uint64_t kWeightAlignment = 256;
uint64_t aligned_weight_bytes(int64_t bytes);

}  // namespace spillway
