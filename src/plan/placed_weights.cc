// SPDX-License-Identifier: Apache-2.0
#include "plan/placed_weights.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "plan/byte_key.h"

namespace spillway {

PlacedWeights::PlacedWeights(const Model& model, const DeviceTraits& traits)
    : model_(model), traits_(traits) {
  for (const BoundWeight& weight : model.weights) {
    const WeightSlot& slot = weight.slot;
    if (slot.is_table())
      (slot.by_position ? embedding_rows_.position_row : embedding_rows_.token_row) =
          weight.bytes() / slot.rows;
    if (!is_quantized(weight.dtype) || !model.is_multiplied(slot)) continue;
    int64_t& most = !slot.in_layer() ? expanded_.outside_bytes : expanded_.layer_bytes;
    most = std::max(most, 2 * slot.rows * slot.cols);
  }
}

const PlacedWeights::Homes& PlacedWeights::homes(const Plan& plan) {
  ByteKey key;
  key.add(plan.weight_plan());
  std::string by_plan = key.take();
  const auto found = homes_by_plan_.find(by_plan);
  if (found != homes_by_plan_.end()) return *found->second;
  std::vector<Tier> homes = weight_homes(traits_.host_visible, model_, plan.weight_plan());
  const auto number = static_cast<int>(homes_.size());
  const auto [same, added] = homes_.try_emplace(
      std::string(reinterpret_cast<const char*>(homes.data()), homes.size() * sizeof(Tier)));
  if (added) {
    same->second.number = number;
    same->second.of = std::move(homes);
    same->second.loaded = weight_bytes(traits_, model_, same->second.of, /*may_map=*/false);
    // Only where the device's kernels read host memory may weights be mapped.
    same->second.mapped = traits_.host_visible
                              ? weight_bytes(traits_, model_, same->second.of, /*may_map=*/true)
                              : same->second.loaded;
  }
  return *homes_by_plan_.emplace(std::move(by_plan), &same->second).first->second;
}

const StreamingNeeds& PlacedWeights::streaming(const Plan& plan, SlotContent slots) {
  const std::vector<CpuLinearShare> shares = plan.shared_linear(traits_.host_visible);
  const Homes& placed = homes(plan);
  ByteKey key;
  key.add_all(placed.number, slots);
  for (const CpuLinearShare& share : shares) key.add(share);
  const auto [found, added] = streaming_.try_emplace(key.take());
  StreamingNeeds& needs = found->second;
  if (!added) return needs;
  const auto schedules = streaming_schedules(model_, placed.of, shares, slots);
  needs.slots = slot_count(slots, schedules);
  needs.slot_bytes = slot_bytes(traits_, model_, placed.of, schedules);
  needs.stages = stream_stages(model_, placed.of, schedules);
  needs.disk_rows = disk_rows_bytes(traits_, model_, placed.of, schedules);
  std::vector<const StreamingSchedule*> each;
  for (const StreamingSchedule& schedule : schedules) each.push_back(&schedule);
  needs.cpu_rows = cpu_rows(each, shares, std::numeric_limits<int64_t>::max());
  return needs;
}

std::shared_ptr<const StepWeights> PlacedWeights::of_step(const Plan& plan,
                                                          const StreamSplit& split) {
  const Homes& placed = homes(plan);
  ByteKey key;
  key.add_all(placed.number, split.slots, split.segment_bytes);
  key.add(split.cpu);
  if (steps_.size() >= kMostSteps) steps_.clear();
  auto& found = steps_[key.take()];
  if (!found) found = std::make_shared<const StepWeights>(step_weights(model_, placed.of, split));
  return found;
}

}  // namespace spillway
