// SPDX-License-Identifier: Apache-2.0
// The part of a plan about weights: which share of them each memory holds, and the matrices that
// are named to live elsewhere.
#pragma once

#include <string>
#include <vector>

#include "base/tier.h"
#include "model/weight_slots.h"

namespace spillway {

// Shares of the bytes of something, adding up to 1.
struct TierShares {
  double device = 1;
  double host = 0;
  double disk = 0;
};

struct LayerRange {
  int first = 0, last = 0;  // both included
  bool operator==(const LayerRange&) const = default;
};

// A home for some of the layers' matrices, the memory in which they live, which overrides the
// shares.
struct WeightOverride {
  std::vector<LayerRange> layers = {};  // empty: all
  // The name of a matrix ("mlp_down"), or of an op with several ("qkv"); empty: all matrices.
  std::string matrix = {};
  Tier home = Tier::kDevice;

  bool names(const WeightSlot& slot) const;
  bool operator==(const WeightOverride&) const = default;
};

struct WeightPlan {
  TierShares shares = {};  // of the layers' matrices that no override names
  Tier embeddings = Tier::kDevice;
  std::vector<WeightOverride> overrides = {};  // if several name a matrix, the last one decides
};

}  // namespace spillway
