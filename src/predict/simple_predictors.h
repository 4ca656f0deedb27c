// SPDX-License-Identifier: Apache-2.0
// What a predictor is to be compared with: one that looks at no prompt, and one that cannot err.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "predict/length_predictor.h"

namespace spillway {

// Answers are as those before them, whatever is asked: how often each bucket was right.
class RunningMeanPredictor : public LengthPredictor {
 public:
  explicit RunningMeanPredictor(const LengthBuckets& buckets) : buckets_(buckets) {}

  LengthDistribution predict(const LengthQuery& query) const override;
  void learn(const LengthQuery& query, int64_t tokens) override;

 private:
  LengthBuckets buckets_;
  std::array<int64_t, kLengthBuckets> answers_ = {};
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
