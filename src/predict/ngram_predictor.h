// SPDX-License-Identifier: Apache-2.0
// The built-in predictor: a linear classifier over words and pieces of words, trained as answers
// come.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "predict/online_predictor.h"

namespace spillway {

// Two linear models in one table, whose probabilities are averaged: one chooses among the buckets
// (softmax), the other says of each edge whether the answer goes beyond it, and so knows that
// buckets are in order. Both learn by AdaGrad. Owns some 5 MB. Not thread-safe. It may have slots
// for more than it sees by itself, behind kFeatureSlots (EncoderPredictor).
class NgramPredictor : public OnlinePredictor {
 public:
  explicit NgramPredictor(const LengthBuckets& buckets, size_t more_slots = 0);

  std::vector<PromptFeature> look_at(const LengthQuery& query) const override {
    return prompt_features(query);
  }
  LengthDistribution predict_from(std::span<const PromptFeature> features) const override;
  void learn_from(std::span<const PromptFeature> features, int64_t tokens) override;
  void forget_half() override;

  const LengthBuckets& buckets() const override { return buckets_; }
  size_t more_slots() const { return weights_.size() / kRow - kFeatureSlots; }
  uint64_t examples() const override { return examples_; }
  std::unique_ptr<OnlinePredictor> copy() const override {
    return std::make_unique<NgramPredictor>(*this);
  }
  // As predictor_file.h says, and defined there.
  [[nodiscard]] bool try_write(const std::filesystem::path& path,
                               const std::string& model) const override;

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
