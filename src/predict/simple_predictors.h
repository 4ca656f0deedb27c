// SPDX-License-Identifier: Apache-2.0
// Reference predictors for comparisons: one that looks at no prompt, and one that is always right.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "predict/online_predictor.h"

namespace spillway {

// Predicts the distribution of all answers so far, whatever the prompt is.
class RunningMeanPredictor : public OnlinePredictor {
 public:
  explicit RunningMeanPredictor(const LengthBuckets& buckets) : buckets_(buckets) {}

  std::vector<PromptFeature> look_at(const LengthQuery&) const override { return {{}}; }
  LengthDistribution predict_from(std::span<const PromptFeature> seen) const override;
  void learn_from(std::span<const PromptFeature> seen, int64_t tokens) override;
  void forget_half() override;

  const LengthBuckets& buckets() const override { return buckets_; }
  uint64_t examples() const override { return examples_; }
  std::unique_ptr<OnlinePredictor> copy() const override {
    return std::make_unique<RunningMeanPredictor>(*this);
  }

 private:
  LengthBuckets buckets_;
  std::array<int64_t, kLengthBuckets> answers_ = {};  // answers per bucket, halved by forget_half()
  uint64_t examples_ = 0;
};

// Returns the exact lengths that it was taught for each prompt.
class OraclePredictor : public LengthPredictor {
 public:
  // Throws kInvalidArgument for a query that learn() was never called with.
  LengthDistribution predict(const LengthQuery& query) const override;
  void learn(const LengthQuery& query, int64_t tokens) override;

 private:
  std::unordered_map<std::string, int64_t> answers_;
};

}  // namespace spillway
