// SPDX-License-Identifier: Apache-2.0
// The built-in predictor: a linear classifier over words and pieces of words, trained as answers
// come.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "predict/length_predictor.h"
#include "predict/prompt_features.h"

namespace spillway {

// Two linear models in one table, whose probabilities are averaged: one chooses among the buckets
// (softmax), the other says of each edge whether the answer goes beyond it, and so knows that
// buckets are in order. Both learn by AdaGrad. Owns some 5 MB. Not thread-safe.
class NgramPredictor : public LengthPredictor {
 public:
  explicit NgramPredictor(const LengthBuckets& buckets);

  LengthDistribution predict(const LengthQuery& query) const override;
  void learn(const LengthQuery& query, int64_t tokens) override;

  // The same for features that were made before: learning goes over its data several times.
  LengthDistribution predict_from(std::span<const PromptFeature> features) const;
  void learn_from(std::span<const PromptFeature> features, int64_t tokens);

  const LengthBuckets& buckets() const { return buckets_; }
  uint64_t examples() const { return examples_; }  // that it learned from, again and again

  // What a file has of it: all that predicting and learning need.
  std::span<const float> weights() const { return weights_; }
  std::span<const float> gradients() const { return gradients_; }
  // As many as those of a new one. Throws kInvalidArgument for numbers that are none.
  void restore(std::span<const float> weights, std::span<const float> gradients, uint64_t examples);

 private:
  static constexpr size_t kEdges = kLengthBuckets - 1;
  static constexpr size_t kOutputs = kLengthBuckets + kEdges;
  static constexpr size_t kRow = 20;  // floats of a slot; the last is not used
  using Outputs = std::array<float, kRow>;

  Outputs outputs(std::span<const PromptFeature> features) const;

  LengthBuckets buckets_;
  std::vector<float> weights_;    // [slots, kRow]
  std::vector<float> gradients_;  // sums of their squares, as weights_
  uint64_t examples_ = 0;
};

}  // namespace spillway
