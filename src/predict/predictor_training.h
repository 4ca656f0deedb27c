// SPDX-License-Identifier: Apache-2.0
// Trains length predictors on complete data sets, and scores them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "predict/length_data.h"
#include "predict/ngram_predictor.h"

namespace spillway {

// Makes a fresh predictor for these buckets.
using PredictorMaker = std::function<std::unique_ptr<OnlinePredictor>(const LengthBuckets&)>;

// Goes over the examples several times, each time in another order; the orders are the same for
// each call. Throws kCancelled when `cancel` is set.
void train(OnlinePredictor& predictor, std::span<const LengthExample> examples,
           const std::atomic<bool>* cancel = nullptr);
// Trains the built-in predictor.
NgramPredictor train_predictor(std::span<const LengthExample> examples,
                               const LengthBuckets& buckets,
                               const std::atomic<bool>* cancel = nullptr);

// The quantile of the predicted length for which KV cache is reserved: enough for most answers, and
// little enough to run many. Of those simulated it gave the most throughput (bench/s3_tables.cc).
inline constexpr double kReservedQuantile = 0.55;

// Returns the lengths of the examples' answers.
std::vector<int64_t> lengths_of(std::span<const LengthExample> examples);

// How well buckets are predicted, for examples that the predictor was not trained on.
struct BucketScore {
  double accuracy = 0;           // share whose likeliest bucket is the right one
  double majority_accuracy = 0;  // the same for always predicting the training's largest bucket
  double mean_distance = 0;   // buckets between the predicted and the right one, over all examples
  double wrong_distance = 0;  // the same over wrong predictions only
};

struct PredictorScore {
  BucketScore linear;           // ten buckets of equal width up to most_tokens
  BucketScore paper;            // ten buckets of equal width up to 2048 tokens (S3)
  BucketScore equal_frequency;  // ten buckets with a tenth of the training's answers each
  // For buckets of equal frequency, at kReservedQuantile: the share of answers that are not longer
  // than the quantile, and the quantile's mean.
  double reserved_enough = 0, reserved_tokens = 0;
  double mean_tokens = 0;  // mean length of the answers
  double us_per_prediction = 0;
  int64_t examples = 0;
};

struct EvaluationOptions {
  double most_tokens = 512;
  int folds = 5;
  const std::atomic<bool>* cancel = nullptr;
  PredictorMaker make = {};  // makes the predictors to be trained; empty: the built-in one
};

// Returns which of `folds` parts an example is in, by a hash of its group.
int fold_of(const LengthExample& example, int folds);

// Predicts each example with a predictor that was trained on the other folds.
PredictorScore cross_validate(std::span<const LengthExample> examples,
                              const EvaluationOptions& options);
// Scores a trained predictor on all examples. The majority bucket and the buckets of equal
// frequency are those of these examples.
PredictorScore evaluate(std::span<const LengthExample> examples, const OnlinePredictor& predictor,
                        const EvaluationOptions& options);

}  // namespace spillway
