// SPDX-License-Identifier: Apache-2.0
#include "predict/encoder_predictor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "predict/online_trainer.h"
#include "predict/predictor_training.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

using testing::HasSubstr;

// Its embedding carries what no word says: whether the text has an even number of bytes.
class FakeEncoder final : public PromptEncoder {
 public:
  explicit FakeEncoder(std::string digest = "fake") : digest_(std::move(digest)) {}

  int64_t dimensions() const override { return 2; }
  std::vector<float> embed(std::string_view text) const override {
    ++asked;
    return text.size() % 2 == 0 ? std::vector<float>{1, 0} : std::vector<float>{0, 1};
  }
  const std::string& digest() const override { return digest_; }
  const std::filesystem::path& folder() const override { return folder_; }
  uint64_t memory_bytes() const override { return 12345; }

  mutable std::atomic<int> asked = 0;

 private:
  std::string digest_;
  std::filesystem::path folder_ = "some/folder";
};

std::vector<LengthExample> even_and_odd(int count) {
  std::vector<LengthExample> examples;
  for (int i = 0; i < count; ++i) {
    const std::string prompt = "number " + std::to_string(1000 + i * 7) + (i % 3 == 0 ? "" : "0");
    examples.push_back({prompt, prompt, prompt.size() % 2 == 0 ? 20 : 400});
  }
  return examples;
}

TEST(EncoderPredictorTest, LearnsFromEmbeddings) {
  const auto encoder = std::make_shared<FakeEncoder>();
  EvaluationOptions options;
  options.make = [&](const LengthBuckets& buckets) {
    return std::make_unique<EncoderPredictor>(buckets, encoder);
  };
  const std::vector<LengthExample> examples = even_and_odd(60);
  EXPECT_GT(cross_validate(examples, options).linear.accuracy, 0.95);
  EXPECT_EQ(encoder->asked, 60) << "each prompt once, however often it is learned from";
}

TEST(EncoderPredictorTest, WhatItsNetworkTakesIsKnownToWhoPlans) {
  const auto buckets = LengthBuckets::linear(500);
  OnlineTrainer trainer(
      std::make_unique<EncoderPredictor>(buckets, std::make_shared<FakeEncoder>()));
  EXPECT_EQ(trainer.network_bytes(), 12345U);
  EXPECT_EQ(OnlineTrainer(std::make_unique<NgramPredictor>(buckets)).network_bytes(), 0U);
}

TEST(EncoderPredictorTest, WithoutTextOnlyTokensAreSeen) {
  const auto encoder = std::make_shared<FakeEncoder>();
  const EncoderPredictor predictor(LengthBuckets::linear(512), encoder);
  const TokenId tokens[] = {1, 2, 3};
  const auto seen = predictor.look_at({.tokens = tokens});
  EXPECT_TRUE(std::ranges::all_of(seen, [](const auto& one) { return one.slot < kFeatureSlots; }));
  EXPECT_FALSE(seen.empty());
  EXPECT_EQ(encoder->asked, 0);
}

TEST(EncoderPredictorTest, WhatEmbeddingsSaidIsForgottenWithTheRest) {
  const auto encoder = std::make_shared<FakeEncoder>();
  auto trained = std::make_unique<EncoderPredictor>(LengthBuckets::linear(512), encoder);
  train(*trained, even_and_odd(60));
  OnlineTrainer trainer(std::move(trained));
  for (int i = 0; i < 500; ++i) {  // answers are now the other way round
    const std::string prompt = "number " + std::to_string(5000 + i % 40) + (i % 3 == 0 ? "" : "0");
    trainer.finished(trainer.predict({.text = prompt}), prompt.size() % 2 == 0 ? 400 : 20);
  }
  trainer.wait_until_learned();
  EXPECT_GE(trainer.counts().shifts, 1U);
  EXPECT_EQ(trainer.predict({.text = "number 7777"}).distribution.likeliest(), 0U);
  EXPECT_EQ(trainer.predict({.text = "number 77770"}).distribution.likeliest(), 7U);
}

TEST(EncoderPredictorTest, LearnsOnlineAndAsksTheEncoderOnceARequest) {
  const auto encoder = std::make_shared<FakeEncoder>();
  OnlineTrainer trainer(std::make_unique<EncoderPredictor>(LengthBuckets::linear(512), encoder));
  for (int turn = 0; turn < 100; ++turn) {
    trainer.finished(trainer.predict({.text = "even"}), 20);
    trainer.finished(trainer.predict({.text = "odd"}), 400);
  }
  trainer.wait_until_learned();
  EXPECT_EQ(encoder->asked, 200);
  EXPECT_EQ(trainer.predict({.text = "what"}).distribution.likeliest(), 0U);
  EXPECT_EQ(trainer.predict({.text = "which"}).distribution.likeliest(), 7U);
}

TEST(EncoderPredictorTest, ComesBackFromAFileWithItsEncoder) {
  const TempFolder folder;
  const auto encoder = std::make_shared<FakeEncoder>();
  EncoderPredictor predictor(LengthBuckets::linear(512), encoder);
  train(predictor, even_and_odd(40));
  ASSERT_TRUE(predictor.try_write(folder / "p", "m"));
  std::filesystem::path opened;
  const EncoderOpener open = [&](const std::filesystem::path& path) {
    opened = path;
    return encoder;
  };
  const auto read = predictor_of(*try_read_predictor(folder / "p"), open);
  EXPECT_EQ(opened, "some/folder");
  const LengthQuery query{.text = "number 77"};
  for (size_t i = 0; i < kLengthBuckets; ++i)
    EXPECT_EQ(read->predict(query).share(i), predictor.predict(query).share(i));
}

TEST(EncoderPredictorTest, AnotherEncodersFileIsRefused) {
  const TempFolder folder;
  const EncoderPredictor predictor(LengthBuckets::linear(512), std::make_shared<FakeEncoder>());
  ASSERT_TRUE(predictor.try_write(folder / "p", "m"));
  const EncoderOpener open = [](const auto&) { return std::make_shared<FakeEncoder>("other"); };
  EXPECT_THAT(error_of([&] { predictor_of(*try_read_predictor(folder / "p"), open); }),
              HasSubstr("another encoder"));
}

TEST(EncoderPredictorTest, TheBuiltInOneNeedsNoEncoder) {
  const TempFolder folder;
  write_predictor(folder / "p", NgramPredictor(LengthBuckets::linear(512)), "m");
  EXPECT_EQ(predictor_of(*try_read_predictor(folder / "p"), {})->examples(), 0U);
}

}  // namespace
}  // namespace spillway
