// SPDX-License-Identifier: Apache-2.0
// For tests: writes the random weights of a model to a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

#include "device/device.h"
#include "model/model.h"
#include "plan/weight_homes.h"
#include "runtime/dummy_source.h"

namespace spillway {

// Writes to `path` the weights that load_weights() makes for the model without files, and returns
// the model with its weights there. Random weights of a part of the model, or of the same model
// beside others, would differ.
inline Model write_weights(Device& host, Model model, const std::filesystem::path& path) {
  DummySource source(model);
  std::ofstream file(path, std::ios::binary);
  std::vector<Extent> extents;
  uint64_t offset = 0;
  for (const BoundWeight& weight : model.weights) {
    std::vector<std::byte> bytes(aligned_weight_bytes(weight.bytes()));
    const WeightTarget target{&weight, WeightLayout::kRows, bytes.data()};
    source.make(host, {&target, 1}, {});
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    extents.push_back({0, offset, static_cast<uint64_t>(weight.bytes())});
    offset += bytes.size();
  }
  for (size_t i = 0; i < extents.size(); ++i) model.weights[i].extent = extents[i];
  return model;
}

}  // namespace spillway
