// SPDX-License-Identifier: Apache-2.0
// Makes random weights for models that are only a shape (dummy:NAME).
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

// Fills weights of many GBs at the speed of memory: there is one pattern per type and spread, which
// all threads copy, from a different place for each weight. The model must outlive it.
class DummySource final : public WeightSource {
 public:
  explicit DummySource(const Model& model);

  void make(Device& device, std::span<const WeightTarget> targets,
            const WeightLoadOptions& options) override;
  uint64_t bytes_to_make(const BoundWeight& weight) const override;

 private:
  // Type and columns. The columns determine the spread, which keeps activations at the same scale
  // from layer to layer.
  using PatternKey = std::pair<DType, int64_t>;
  static PatternKey key_of(const BoundWeight& weight);
  const RandomPattern& pattern(const BoundWeight& weight);
  void fill(const BoundWeight& weight, std::byte* data);
  // Packs rows into groups of rows, in place.
  void pack(const BoundWeight& weight, std::byte* data);

  const Model& model_;
  std::vector<uint64_t> shifts_;  // by number in Model::weights: where in its pattern it begins
  std::map<PatternKey, uint64_t> seeds_;
  std::map<PatternKey, RandomPattern> patterns_;
  ThreadPool pool_;
};

}  // namespace spillway
