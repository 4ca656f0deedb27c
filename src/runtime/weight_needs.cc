// SPDX-License-Identifier: Apache-2.0
#include "runtime/weight_needs.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/weight_file_filler.h"
#include "runtime/weight_placement.h"
#include "storage/extent_reader.h"

namespace spillway {

std::array<uint64_t, kTierCount> bytes_by_home(const Model& model, const std::vector<Tier>& homes) {
  std::array<uint64_t, kTierCount> sums = {};
  for (size_t i = 0; i < homes.size(); ++i)
    sums[static_cast<size_t>(homes[i])] += aligned_weight_bytes(model.weights[i].bytes());
  return sums;
}

WeightNeeds weight_needs(const Device& device, const Model& model, const TierShares& shares,
                         const WeightLoadOptions& options) {
  const std::vector<Tier> homes = weight_homes(device, model, shares);
  const auto bytes = bytes_by_home(model, homes);
  WeightNeeds needs;
  needs.device = bytes[static_cast<size_t>(Tier::kDevice)];
  needs.disk = bytes[static_cast<size_t>(Tier::kDisk)];
  needs.from_disk = needs.disk > 0;
  bool mapped = device.host_visible() && options.access == WeightAccess::kMapped && needs.disk == 0;
  std::map<int, std::vector<StreamedWeight>> streamed;
  uint64_t largest_written = 0;
  for (size_t i = 0; i < homes.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    const WeightSlot& slot = weight.slot;
    const WeightLayout layout = layout_on(device, model, weight);
    const bool stays = is_as_stored(weight, layout);
    if (homes[i] == Tier::kDevice) {
      mapped = mapped && stays;
      continue;
    }
    // As it will be streamed: all that counts is how many bytes, and where in a block they begin.
    static constexpr std::byte kInMemory{};
    const auto size = static_cast<uint64_t>(weight.bytes());
    streamed[slot.layer].push_back({slot.role,
                                    {weight.dtype, slot.rows, slot.cols, nullptr, layout},
                                    homes[i] == Tier::kHost ? &kInMemory : nullptr,
                                    stays ? *weight.extent : Extent{0, 0, size}});
    if (homes[i] == Tier::kHost) needs.host += size;
    if (homes[i] == Tier::kDisk && !stays) largest_written = std::max(largest_written, size);
  }
  if (mapped) needs.mapped = std::exchange(needs.device, 0);
  needs.streamed_layers = static_cast<int>(streamed.size());
  for (const auto& [layer, weights] : streamed)
    needs.slot = std::max(needs.slot, streamed_bytes(weights));
  if (largest_written > 0) needs.loading_host = WeightFileFiller::staging_bytes(largest_written);
  return needs;
}

uint64_t streamed_bytes(std::span<const StreamedWeight> weights) {
  uint64_t bytes = kDirectAlignment;
  for (const StreamedWeight& weight : weights) {
    bytes += weight.host != nullptr ? aligned_weight_bytes(weight.view.bytes())
                                    : ExtentReader::buffer_bytes({&weight.extent, 1});
  }
  return bytes;
}

}  // namespace spillway
