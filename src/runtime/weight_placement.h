// SPDX-License-Identifier: Apache-2.0
// The homes that weights should have (the memories in which they live), and the devices, queue and
// folder that are needed to bring them there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "device/device.h"
#include "plan/weight_homes.h"

namespace spillway {

class IoQueue;

struct WeightPlacement {
  std::vector<Tier> homes = {};    // one for each of Model::weights; empty: all on the device
  Device* host = nullptr;          // the device whose memory is the host's; null: the device itself
  IoQueue* queue = nullptr;        // the engine's; needed for weights on disk
  std::filesystem::path disk_dir;  // for weights on disk that are not used from the model's file
  uint64_t disk_budget = ~uint64_t{0};
  // Most bytes of host memory that are pinned; other weights there are streamed through staging.
  uint64_t most_pinned = ~uint64_t{0};

  Device& host_beside(Device& device) const { return host == nullptr ? device : *host; }
  std::vector<Tier> homes_of(const Model& model) const {
    return homes.empty() ? std::vector<Tier>(model.weights.size(), Tier::kDevice) : homes;
  }
};

}  // namespace spillway
