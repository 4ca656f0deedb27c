// SPDX-License-Identifier: Apache-2.0
// Where weights are to live, and with what they get there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "device/device.h"
#include "plan/weight_homes.h"

namespace spillway {

class IoQueue;

struct WeightPlacement {
  WeightPlan weights = {};         // homes: plan/weight_homes.h
  Device* host = nullptr;          // whose memory is the host's; null: the device itself
  IoQueue* queue = nullptr;        // the engine's; needed for weights that live on disk
  std::filesystem::path disk_dir;  // of weights that live on disk, other than in the model's file
  uint64_t disk_budget = ~uint64_t{0};
  uint64_t most_pinned = ~uint64_t{0};  // of what is in host memory; the rest comes through staging

  Device& host_beside(Device& device) const { return host == nullptr ? device : *host; }
  std::vector<Tier> homes(const Device& device, const Model& model) const {
    return weight_homes(device.host_visible(), model, weights);
  }
};

}  // namespace spillway
