// SPDX-License-Identifier: Apache-2.0
#include "predict/predictor_training.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "base/digest.h"
#include "base/error.h"
#include "base/stopwatch.h"

namespace spillway {
namespace {

constexpr int kPasses = 15;
constexpr double kPaperTokens = 2048;

// std::shuffle gives another order with each standard library.
template <class T>
void shuffle_in_place(std::vector<T>& values, std::mt19937& random) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random() % i]);
}

// Sums up the parts of a score.
class Tally {
 public:
  void add(size_t said, size_t right, size_t majority) {
    const auto distance = std::abs(static_cast<double>(said) - static_cast<double>(right));
    ++all_;
    right_ += said == right ? 1 : 0;
    majority_ += majority == right ? 1 : 0;
    distance_ += distance;
  }
  void add_reserved(int64_t reserved, int64_t tokens) {
    enough_ += reserved >= tokens ? 1 : 0;
    reserved_ += static_cast<double>(reserved);
  }
  double enough() const { return enough_ / all_; }
  double reserved() const { return reserved_ / all_; }
  BucketScore score() const {
    const double wrong = all_ - right_;
    return {.accuracy = right_ / all_,
            .majority_accuracy = majority_ / all_,
            .mean_distance = distance_ / all_,
            .wrong_distance = wrong > 0 ? distance_ / wrong : 0};
  }

 private:
  double all_ = 0, right_ = 0, majority_ = 0, distance_ = 0, enough_ = 0, reserved_ = 0;
};

size_t majority_bucket(std::span<const LengthExample> examples, const LengthBuckets& buckets) {
  std::array<int64_t, kLengthBuckets> counts{};
  for (const LengthExample& example : examples) ++counts[buckets.bucket_of(example.tokens)];
  return static_cast<size_t>(std::ranges::max_element(counts) - counts.begin());
}

// An example with a predictor's features of it. look_at() may take long, so it is called once.
struct SeenExample {
  const LengthExample* example;
  std::vector<PromptFeature> seen;
};

std::vector<SeenExample> look_at_all(const OnlinePredictor& predictor,
                                     std::span<const LengthExample> examples,
                                     const std::atomic<bool>* cancel, double& seconds) {
  std::vector<SeenExample> all;
  const Stopwatch watch;
  for (const LengthExample& example : examples) {
    SPW_CHECK(cancel == nullptr || !*cancel, kCancelled, "stopped after {} of {} prompts",
              all.size(), examples.size());
    all.push_back({&example, predictor.look_at({.text = example.prompt})});
  }
  seconds += watch.seconds();
  return all;
}

void learn_all(OnlinePredictor& predictor, std::span<const SeenExample* const> examples,
               const std::atomic<bool>* cancel) {
  std::vector<const SeenExample*> order(examples.begin(), examples.end());
  std::mt19937 random(1);
  for (int pass = 0; pass < kPasses; ++pass) {
    shuffle_in_place(order, random);
    for (const SeenExample* one : order) {
      SPW_CHECK(cancel == nullptr || !*cancel, kCancelled, "stopped in pass {} of {}", pass + 1,
                kPasses);
      predictor.learn_from(one->seen, one->example->tokens);
    }
  }
}

// Scores the predictions for `tests` of one predictor in one kind of buckets.
void predict_all(std::span<const SeenExample* const> tests, const OnlinePredictor& predictor,
                 const LengthBuckets& buckets, size_t majority, Tally& tally, double& seconds) {
  const bool is_same = predictor.buckets().edges() == buckets.edges();
  for (const SeenExample* test : tests) {
    const Stopwatch watch;
    const LengthDistribution said = predictor.predict_from(test->seen);
    seconds += watch.seconds();
    const int64_t tokens = test->example->tokens;
    tally.add((is_same ? said : said.in(buckets)).likeliest(), buckets.bucket_of(tokens), majority);
    tally.add_reserved(said.quantile(kReservedQuantile), tokens);
  }
}

std::vector<const SeenExample*> pointers_to(const std::vector<SeenExample>& all) {
  std::vector<const SeenExample*> pointers;
  for (const SeenExample& one : all) pointers.push_back(&one);
  return pointers;
}

double mean_length(std::span<const LengthExample> examples) {
  double sum = 0;
  for (const LengthExample& example : examples) sum += static_cast<double>(example.tokens);
  return sum / static_cast<double>(examples.size());
}

}  // namespace

int fold_of(const LengthExample& example, int folds) {
  const std::string digits = digest128(example.group).substr(0, 8);
  return static_cast<int>(std::stoul(digits, nullptr, 16) % static_cast<unsigned long>(folds));
}

std::vector<int64_t> lengths_of(std::span<const LengthExample> examples) {
  std::vector<int64_t> lengths;
  for (const LengthExample& example : examples) lengths.push_back(example.tokens);
  return lengths;
}

void train(OnlinePredictor& predictor, std::span<const LengthExample> examples,
           const std::atomic<bool>* cancel) {
  double seconds = 0;
  learn_all(predictor, pointers_to(look_at_all(predictor, examples, cancel, seconds)), cancel);
}

NgramPredictor train_predictor(std::span<const LengthExample> examples,
                               const LengthBuckets& buckets, const std::atomic<bool>* cancel) {
  NgramPredictor predictor(buckets);
  train(predictor, examples, cancel);
  return predictor;
}

PredictorScore cross_validate(std::span<const LengthExample> examples,
                              const EvaluationOptions& options) {
  SPW_CHECK(options.folds >= 2, kInvalidArgument, "a split needs 2 folds or more, not {}",
            options.folds);
  const PredictorMaker make = options.make ? options.make : [](const LengthBuckets& buckets) {
    return std::make_unique<NgramPredictor>(buckets);
  };
  Tally linear, paper, equal;
  double looking = 0, predicting = 0;
  const LengthBuckets widths = LengthBuckets::linear(options.most_tokens);
  const std::vector<SeenExample> seen =
      look_at_all(*make(widths), examples, options.cancel, looking);
  for (int fold = 0; fold < options.folds; ++fold) {
    std::vector<LengthExample> trained_with;
    std::vector<const SeenExample*> training, tests;
    for (const SeenExample& one : seen) {
      const bool is_test = fold_of(*one.example, options.folds) == fold;
      (is_test ? tests : training).push_back(&one);
      if (!is_test) trained_with.push_back(*one.example);
    }
    SPW_CHECK(!training.empty(), kInvalidArgument,
              "all {} examples are of one group: nothing to train with", examples.size());
    const auto run = [&](const LengthBuckets& buckets, Tally& tally) {
      const std::unique_ptr<OnlinePredictor> predictor = make(buckets);
      learn_all(*predictor, training, options.cancel);
      predict_all(tests, *predictor, buckets, majority_bucket(trained_with, buckets), tally,
                  predicting);
    };
    run(widths, linear);
    run(LengthBuckets::linear(kPaperTokens), paper);
    run(LengthBuckets::equal_frequency(lengths_of(trained_with)), equal);
  }
  const auto count = static_cast<double>(examples.size());
  return {.linear = linear.score(),
          .paper = paper.score(),
          .equal_frequency = equal.score(),
          .reserved_enough = equal.enough(),
          .reserved_tokens = equal.reserved(),
          .mean_tokens = mean_length(examples),
          .us_per_prediction = (looking + predicting / 3) / count * 1e6,
          .examples = static_cast<int64_t>(examples.size())};
}

PredictorScore evaluate(std::span<const LengthExample> examples, const OnlinePredictor& predictor,
                        const EvaluationOptions& options) {
  double looking = 0, predicting = 0;
  const std::vector<SeenExample> seen = look_at_all(predictor, examples, options.cancel, looking);
  const auto run = [&](const LengthBuckets& buckets) {
    Tally tally;
    predict_all(pointers_to(seen), predictor, buckets, majority_bucket(examples, buckets), tally,
                predicting);
    return tally;
  };
  const Tally equal = run(LengthBuckets::equal_frequency(lengths_of(examples)));
  PredictorScore score{.linear = run(LengthBuckets::linear(options.most_tokens)).score(),
                       .paper = run(LengthBuckets::linear(kPaperTokens)).score(),
                       .equal_frequency = equal.score(),
                       .reserved_enough = equal.enough(),
                       .reserved_tokens = equal.reserved(),
                       .mean_tokens = mean_length(examples),
                       .examples = static_cast<int64_t>(examples.size())};
  score.us_per_prediction = (looking + predicting / 3) / static_cast<double>(examples.size()) * 1e6;
  return score;
}

}  // namespace spillway
