// SPDX-License-Identifier: Apache-2.0
#include "device/tuning.h"

namespace spillway {

std::optional<InflectionPoints> TuningTable::try_points(const LinearShape& shape) const {
  const auto it = points_.find(shape);
  return it == points_.end() ? others_ : it->second;
}

void TuningTable::merge(const TuningTable& newer) {
  for (const auto& [shape, points] : newer.points_) points_[shape] = points;
  for (const auto& [model, bounds] : newer.scores_) scores_[model] = bounds;
}

std::optional<ScoreBounds> TuningTable::try_scores(const std::string& model) const {
  const auto it = scores_.find(model);
  return it == scores_.end() ? std::nullopt : std::optional(it->second);
}

TunedMachine tuned_machine(const DeviceInfo& info) {
  // Devices of one kind, such as "cuda:0" and "cuda:1", share their measurements.
  return {info.name.substr(0, info.name.find(':')), info.hardware, info.features, info.threads};
}

}  // namespace spillway
