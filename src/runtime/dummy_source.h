// SPDX-License-Identifier: Apache-2.0
// Random weights for models that are only a shape (dummy:NAME).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "runtime/weight_source.h"
#include "tensor/random_fill.h"

namespace spillway {

// Fills weights of a size in the GBs at the speed of memory: one pattern per type and spread,
// copied by all threads from another place for each weight. The model must outlive it.
class DummySource final : public WeightSource {
 public:
  explicit DummySource(const Model& model);

  void make(Device& device, std::span<const WeightTarget> targets,
            const WeightLoadOptions& options) override;
  uint64_t bytes_to_make(const BoundWeight& weight) const override;

 private:
  // Type and columns: what keeps activations at the same scale from layer to layer.
  using PatternKey = std::pair<DType, int64_t>;
  static PatternKey key_of(const BoundWeight& weight);
  const RandomPattern& pattern(const BoundWeight& weight);
  void fill(const BoundWeight& weight, std::byte* data);
  // Rows to groups of rows, in place.
  void pack(const BoundWeight& weight, std::byte* data);

  const Model& model_;
  std::vector<uint64_t> shifts_;  // by number in Model::weights: where in its pattern it begins
  std::map<PatternKey, uint64_t> seeds_;
  std::map<PatternKey, RandomPattern> patterns_;
  ThreadPool pool_;
};

}  // namespace spillway
