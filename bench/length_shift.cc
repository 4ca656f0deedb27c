// SPDX-License-Identifier: Apache-2.0
// Measures how soon a predictor of lengths adapts when answers change to another kind. Prints JSON;
// length_shift.py runs it for the available data and prints a table.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/encoder_option.h"
#include "engine/vocabulary_from_files.h"
#include "predict/encoder_predictor.h"
#include "predict/online_trainer.h"
#include "predict/predictor_training.h"
#include "storage/model_files.h"
#include "text/tokenizer.h"

namespace spillway {
namespace {

using nlohmann::json;
using Examples = std::vector<LengthExample>;

constexpr int kFolds = 5;
constexpr size_t kRequests = 500;  // answers of the other kind
constexpr double kMostTokens = 512;

struct Arguments {
  std::string before, other, model, encoder;
};

// Caches embeddings, because the same prompts are embedded again and again and an encoder is slow.
class RememberingEncoder final : public PromptEncoder {
 public:
  explicit RememberingEncoder(std::shared_ptr<const PromptEncoder> encoder)
      : encoder_(std::move(encoder)) {}

  int64_t dimensions() const override { return encoder_->dimensions(); }
  std::vector<float> embed(std::string_view text) const override {
    const std::lock_guard lock(mutex_);
    std::vector<float>& known = known_[std::string(text)];
    if (known.empty()) known = encoder_->embed(text);
    return known;
  }
  const std::string& digest() const override { return encoder_->digest(); }
  const std::filesystem::path& folder() const override { return encoder_->folder(); }
  uint64_t memory_bytes() const override { return encoder_->memory_bytes(); }

 private:
  std::shared_ptr<const PromptEncoder> encoder_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<float>> known_;
};

PredictorMaker maker_of(const Arguments& arguments) {
  if (arguments.encoder.empty())
    return [](const LengthBuckets& buckets) { return std::make_unique<NgramPredictor>(buckets); };
  const auto encoder = std::make_shared<RememberingEncoder>(open_encoder(arguments.encoder));
  return [encoder](const LengthBuckets& buckets) {
    return std::make_unique<EncoderPredictor>(buckets, encoder);
  };
}

void answer(OnlineTrainer& trainer, const Examples& examples, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const LengthExample& example = examples[i % examples.size()];
    trainer.finished(trainer.predict({.text = example.prompt}), example.tokens);
  }
  trainer.wait_until_learned();
  SPW_ASSERT(trainer.counts().dropped == 0);
}

// Records which tests a predictor gets right, over all folds.
class Score {
 public:
  void add(const OnlinePredictor& predictor, const Examples& tests) {
    for (const LengthExample& test : tests)
      right_.push_back(predictor.predict({.text = test.prompt}).likeliest() ==
                       predictor.buckets().bucket_of(test.tokens));
  }
  void add_always(size_t bucket, const LengthBuckets& buckets, const Examples& tests) {
    for (const LengthExample& test : tests)
      right_.push_back(buckets.bucket_of(test.tokens) == bucket);
  }
  double accuracy() const {
    return static_cast<double>(std::ranges::count(right_, true)) /
           static_cast<double>(right_.size());
  }
  size_t tests() const { return right_.size(); }
  // Returns the standard error of the difference between two scores on the same tests.
  double standard_error(const Score& other) const {
    double sum = 0, squares = 0;
    const auto count = static_cast<double>(right_.size());
    for (size_t i = 0; i < right_.size(); ++i) {
      const double difference = (right_[i] ? 1.0 : 0.0) - (other.right_[i] ? 1.0 : 0.0);
      sum += difference;
      squares += difference * difference;
    }
    const double mean = sum / count;
    return std::sqrt((squares / count - mean * mean) / (count - 1));
  }

 private:
  std::vector<bool> right_;
};

size_t majority_of(const Examples& examples, const LengthBuckets& buckets) {
  std::array<int64_t, kLengthBuckets> counts{};
  for (const LengthExample& example : examples) ++counts[buckets.bucket_of(example.tokens)];
  return static_cast<size_t>(std::ranges::max_element(counts) - counts.begin());
}

// Tests each fold of the other kind with a predictor that learned from the other folds. If these
// have fewer than 500 answers, the answers repeat.
json shift(const Arguments& arguments) {
  const Tokenizer tokenizer(vocabulary_from_files(open_tokenizer(arguments.model)));
  const Examples before = read_length_data(arguments.before, tokenizer).examples;
  const Examples other = read_length_data(arguments.other, tokenizer).examples;
  const LengthBuckets buckets = LengthBuckets::linear(kMostTokens);
  const PredictorMaker make = maker_of(arguments);
  const std::unique_ptr<OnlinePredictor> trained = make(buckets);
  train(*trained, before);
  Score untaught, at_start, mid_run, fresh, majority;
  size_t distinct = 0, parts = 0;
  uint64_t noticed_at_start = 0, noticed_mid_run = 0;
  for (int fold = 0; fold < kFolds; ++fold) {
    Examples coming, tests;
    for (const LengthExample& example : other)
      (fold_of(example, kFolds) == fold ? tests : coming).push_back(example);
    if (coming.empty() || tests.empty()) continue;
    coming.resize(std::min(coming.size(), kRequests));
    distinct = std::max(distinct, coming.size());
    ++parts;
    const auto taught = [&](size_t of_before, Score& score, uint64_t& noticed) {
      OnlineTrainer trainer(trained->copy());
      answer(trainer, before, of_before);
      answer(trainer, coming, kRequests);
      score.add(*trainer.copy(), tests);
      noticed += trainer.counts().shifts;
    };
    taught(0, at_start, noticed_at_start);
    taught(OnlineTrainerOptions{}.most_kept, mid_run, noticed_mid_run);
    const std::unique_ptr<OnlinePredictor> alone = make(buckets);
    train(*alone, coming);
    fresh.add(*alone, tests);
    untaught.add(*trained, tests);
    majority.add_always(majority_of(coming, buckets), buckets, tests);
  }
  SPW_CHECK(fresh.tests() > 1, kInvalidArgument, "{}: too few answers to learn from some of them",
            arguments.other);
  const auto after = [&](const Score& score, uint64_t noticed) {
    return json{{"shifts_noticed", static_cast<double>(noticed) / static_cast<double>(parts)},
                {"accuracy", score.accuracy()},
                {"beyond_fresh", score.accuracy() - fresh.accuracy()},
                {"standard_error", score.standard_error(fresh)}};
  };
  return {{"requests", kRequests},
          {"distinct_requests", distinct},
          {"tests", fresh.tests()},
          {"before", untaught.accuracy()},
          {"at_start", after(at_start, noticed_at_start)},
          {"mid_run", after(mid_run, noticed_mid_run)},
          {"fresh", fresh.accuracy()},
          {"most_frequent", majority.accuracy()}};
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  CLI::App app{"A predictor of answers' lengths meets answers of another kind."};
  spillway::Arguments arguments;
  app.add_option("BEFORE", arguments.before, "answers that it was trained on")->required();
  app.add_option("OTHER", arguments.other, "answers of another kind")->required();
  app.add_option("-m,--model", arguments.model, "whose tokens are counted")->required();
  app.add_option("--encoder", arguments.encoder, "a folder: the predictor that has an encoder");
  CLI11_PARSE(app, argc, argv);
  try {
    fmt::print("{}\n", spillway::shift(arguments).dump(1));
  } catch (const spillway::Error& error) {
    fmt::print(stderr, "length_shift: {}\n", error.what());
    return 1;
  }
  return 0;
}
