// SPDX-License-Identifier: Apache-2.0
// What a plan says of the weights: which share of them is where, and which matrices somebody has
// named to be elsewhere.
#pragma once

#include <string>
#include <vector>

#include "base/tier.h"
#include "model/weight_slots.h"

namespace spillway {

// Shares of something's bytes, adding up to 1.
struct TierShares {
  double device = 1;
  double host = 0;
  double disk = 0;
};

struct LayerRange {
  int first = 0, last = 0;  // both included
  bool operator==(const LayerRange&) const = default;
};

// A home for some of the layers' matrices, whatever the shares are.
struct WeightOverride {
  std::vector<LayerRange> layers = {};  // empty: all
  // Of a layer's matrices ("mlp_down"), or of an op with several ("qkv"); empty: all of them.
  std::string matrix = {};
  Tier home = Tier::kDevice;

  bool names(const WeightSlot& slot) const;
  bool operator==(const WeightOverride&) const = default;
};

struct WeightPlan {
  TierShares shares = {};  // of the layers' matrices that no override names
  Tier embeddings = Tier::kDevice;
  std::vector<WeightOverride> overrides = {};  // of several that name a matrix the last decides
};

}  // namespace spillway
