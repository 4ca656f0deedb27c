// SPDX-License-Identifier: Apache-2.0
#include "runtime/weight_placement.h"

#include <algorithm>
#include <map>

#include "base/checked_math.h"

namespace spillway {

uint64_t aligned_weight_bytes(int64_t bytes) {
  return try_align_up(static_cast<uint64_t>(bytes), kWeightAlignment).value();
}

std::vector<Tier> weight_homes(const Model& model, const TierShares& shares) {
  const double share[kTierCount] = {shares.device, shares.host, shares.disk};
  std::vector<Tier> homes;
  double seen = 0, given[kTierCount] = {};
  for (const BoundWeight& weight : model.weights) {
    if (weight.slot.layer < 0 || weight.slot.is_vector()) {
      homes.push_back(Tier::kDevice);
      continue;
    }
    // To the tier that is furthest behind its share of what has been given out.
    const auto bytes = static_cast<double>(weight.bytes());
    seen += bytes;
    int best = 0;
    double most = -1;
    for (int tier = 0; tier < kTierCount; ++tier) {
      const double behind = share[tier] * seen - given[tier];
      if (share[tier] > 0 && behind > most) best = tier, most = behind;
    }
    given[best] += bytes;
    homes.push_back(static_cast<Tier>(best));
  }
  return homes;
}

WeightBytes weight_bytes(const Model& model, const std::vector<Tier>& homes) {
  WeightBytes sum;
  std::map<int, uint64_t> streamed;
  for (size_t i = 0; i < homes.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    const uint64_t bytes = aligned_weight_bytes(weight.bytes());
    sum.in_tier[static_cast<size_t>(homes[i])] += bytes;
    if (homes[i] != Tier::kDevice) streamed[weight.slot.layer] += bytes;
  }
  for (const auto& [layer, bytes] : streamed)
    sum.largest_streamed_layer = std::max(sum.largest_streamed_layer, bytes);
  return sum;
}

}  // namespace spillway
