// SPDX-License-Identifier: Apache-2.0
#include "runtime/weight_placement.h"

#include <utility>

#include "base/checked_math.h"

namespace spillway {

uint64_t aligned_weight_bytes(int64_t bytes) {
  return try_align_up(static_cast<uint64_t>(bytes), kWeightAlignment).value();
}

std::vector<Tier> weight_homes(const Device& device, const Model& model, TierShares shares) {
  if (device.host_visible()) shares.device += std::exchange(shares.host, 0);  // one memory
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

WeightLayout layout_on(const Device& device, const Model& model, const BoundWeight& weight) {
  const WeightSlot& slot = weight.slot;
  return model.is_multiplied(slot) ? device.preferred_layout(weight.dtype, slot.rows, slot.cols)
                                   : WeightLayout::kRows;
}

bool is_as_stored(const BoundWeight& weight, WeightLayout layout) {
  return weight.extent && !weight.loaded_from && layout == WeightLayout::kRows;
}

}  // namespace spillway
