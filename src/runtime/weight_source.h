// SPDX-License-Identifier: Apache-2.0
// Sources of the bytes of weights that are in no memory yet: a model's files, or a random
// generator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "device/device.h"
#include "memory/weight_load_options.h"
#include "model/model.h"
#include "tensor/tensor_view.h"

namespace spillway {

// A weight, the layout it should have, and where its weight.bytes() bytes go.
struct WeightTarget {
  const BoundWeight* weight;
  WeightLayout layout;
  std::byte* to;
};

// Makes the bytes of weights. A weight's bytes do not depend on which other weights are made, nor
// in which order. Called from one thread.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // The files that BoundWeight::extent refers to; empty if no weight has an extent.
  virtual std::span<const std::filesystem::path> files() const { return {}; }
  // Makes these weights in memory of `device`. Throws kCancelled, and what reading their source
  // throws.
  virtual void make(Device& device, std::span<const WeightTarget> targets,
                    const WeightLoadOptions& options) = 0;
  // Returns what options.progress counts for this weight.
  virtual uint64_t bytes_to_make(const BoundWeight& weight) const = 0;
};

}  // namespace spillway
