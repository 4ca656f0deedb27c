// SPDX-License-Identifier: Apache-2.0
// What a predictor is to be compared with: one that looks at no prompt, and one that cannot err.
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

// Answers are as those before them, whatever is asked: how often each bucket was right.
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
  std::array<int64_t, kLengthBuckets> answers_ = {};  // that count
  uint64_t examples_ = 0;
};

// Knows the answers that it was told, whenever it is asked for them again.
class OraclePredictor : public LengthPredictor {
 public:
  // Throws kInvalidArgument for a query that nobody told it of.
  LengthDistribution predict(const LengthQuery& query) const override;
  void learn(const LengthQuery& query, int64_t tokens) override;

 private:
  std::unordered_map<std::string, int64_t> answers_;
};

}  // namespace spillway
