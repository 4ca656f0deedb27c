// SPDX-License-Identifier: Apache-2.0
// Trains predictors on data that is all there, and says how good they are.
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

// A fresh predictor for these buckets.
using PredictorMaker = std::function<std::unique_ptr<OnlinePredictor>(const LengthBuckets&)>;

// Goes over the examples several times, each time in another order, the same with each call.
// Throws kCancelled when `cancel` is set.
void train(OnlinePredictor& predictor, std::span<const LengthExample> examples,
           const std::atomic<bool>* cancel = nullptr);
// The built-in one.
NgramPredictor train_predictor(std::span<const LengthExample> examples,
                               const LengthBuckets& buckets,
                               const std::atomic<bool>* cancel = nullptr);

// What is reserved for an answer: enough for most, and little enough to have many. Of what was
// simulated, the quantile with the most throughput (bench/s3_tables.cc).
inline constexpr double kReservedQuantile = 0.55;

// Lengths of the answers.
std::vector<int64_t> lengths_of(std::span<const LengthExample> examples);

// Of examples that it was not trained on.
struct BucketScore {
  double accuracy = 0;           // share whose likeliest bucket is the right one
  double majority_accuracy = 0;  // the same, for always saying what was most frequent in training
  double mean_distance = 0;      // buckets between the two, of all
  double wrong_distance = 0;     // of the wrong ones alone
};

struct PredictorScore {
  BucketScore linear;           // buckets of most_tokens / 10
  BucketScore paper;            // of 2048 / 10 (S3)
  BucketScore equal_frequency;  // with a tenth of the training's answers each
  // Of equal frequency, at the quantile that is reserved: the share of answers that are not longer,
  // and its mean.
  double reserved_enough = 0, reserved_tokens = 0;
  double mean_tokens = 0;  // of an answer
  double us_per_prediction = 0;
  int64_t examples = 0;
};

struct EvaluationOptions {
  double most_tokens = 512;
  int folds = 5;
  const std::atomic<bool>* cancel = nullptr;
  PredictorMaker make = {};  // what is trained; the built-in one where there is none
};

// Which of so many parts an example is in: a hash of its group.
int fold_of(const LengthExample& example, int folds);

// Each example is predicted by a predictor trained on the other folds.
PredictorScore cross_validate(std::span<const LengthExample> examples,
                              const EvaluationOptions& options);
// All of them by one that is trained. Majority and equal frequency are those of these examples.
PredictorScore evaluate(std::span<const LengthExample> examples, const OnlinePredictor& predictor,
                        const EvaluationOptions& options);

}  // namespace spillway
