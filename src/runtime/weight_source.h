// SPDX-License-Identifier: Apache-2.0
// Where the bytes of weights come from that nobody has yet: a model's files, or nowhere.
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

// A weight, the layout it should have, and the weight.bytes() where it goes.
struct WeightTarget {
  const BoundWeight* weight;
  WeightLayout layout;
  std::byte* to;
};

// The same bytes for a weight whatever else is asked for, and in which order. Called from one
// thread.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Those that BoundWeight::extent is about; none: no weight has one.
  virtual std::span<const std::filesystem::path> files() const { return {}; }
  // Makes these, in memory of `device`. Throws kCancelled, and what getting at them throws.
  virtual void make(Device& device, std::span<const WeightTarget> targets,
                    const WeightLoadOptions& options) = 0;
  // What options.progress counts for it.
  virtual uint64_t bytes_to_make(const BoundWeight& weight) const = 0;
};

}  // namespace spillway
