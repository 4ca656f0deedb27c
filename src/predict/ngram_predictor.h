// SPDX-License-Identifier: Apache-2.0
// The built-in length predictor: a linear classifier over words and character n-grams, trained
// online as answers end.
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

// Averages the probabilities of two linear models in one table: a softmax over the buckets, and one
// logistic model per edge for whether the answer goes beyond it, which knows that buckets are
// ordered. Both learn by AdaGrad. Owns some 5 MB. Not thread-safe. `more_slots` after kFeatureSlots
// are for features of other sources (EncoderPredictor).
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
  // Writes the format of predictor_file.h, in whose source it is defined.
  [[nodiscard]] bool try_write(const std::filesystem::path& path,
                               const std::string& model) const override;

  // The complete state, which a file stores: all that predicting and learning need.
  std::span<const float> weights() const { return weights_; }
  std::span<const float> gradients() const { return gradients_; }
  // Restores a complete state, which must have a new predictor's sizes. Throws kInvalidArgument for
  // other sizes, weights that are not finite, and sums of squares that are not positive.
  void restore(std::span<const float> weights, std::span<const float> gradients, uint64_t examples);

 private:
  static constexpr size_t kEdges = kLengthBuckets - 1;
  static constexpr size_t kOutputs = kLengthBuckets + kEdges;
  static constexpr size_t kRow = 20;  // floats of a slot; the last is unused
  using Outputs = std::array<float, kRow>;

  Outputs outputs(std::span<const PromptFeature> features) const;

  LengthBuckets buckets_;
  std::vector<float> weights_;    // [slots, kRow]
  std::vector<float> gradients_;  // sums of squared gradients, laid out as weights_
  uint64_t examples_ = 0;
};

}  // namespace spillway
