// SPDX-License-Identifier: Apache-2.0
#include "engine/answer_lengths.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/test_scoped_folder.h"
#include "engine/length_predictor_choice.h"
#include "predict/ngram_predictor.h"
#include "predict/predictor_file.h"
#include "predict/simple_predictors.h"

namespace spillway {
namespace {

const LengthBuckets kBuckets = LengthBuckets::linear(500);

GenerationRequest asking(const std::string& text, int most = 400) {
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.asked = text;
  request.max_tokens = most;
  return request;
}

void teach(AnswerLengths& lengths, int answers, int64_t tokens) {
  for (int i = 0; i < answers; ++i) {
    GenerationRequest request = asking("Name a river");
    lengths.predict(request);
    lengths.ended(request, tokens, FinishReason::kStop);
  }
  while (lengths.counts().waiting > 0 ||
         lengths.counts().learned + lengths.counts().dropped < static_cast<uint64_t>(answers)) {
  }
}

class AnswerLengthsTest : public testing::Test {
 protected:
  AnswerLengthsTest() : folder_(std::filesystem::temp_directory_path()) {}
  ScopedFolder folder_;
};

TEST_F(AnswerLengthsTest, AnAnswerIsPromisedWhatAnswersHave) {
  AnswerLengths lengths(std::make_unique<NgramPredictor>(kBuckets), {}, "m");
  GenerationRequest before = asking("Name a river");
  lengths.predict(before);
  EXPECT_EQ(before.prediction.tokens, 256) << "nothing is known yet";
  EXPECT_EQ(before.asked, "");
  teach(lengths, 100, 30);
  GenerationRequest after = asking("Name a river");
  lengths.predict(after);
  EXPECT_GT(after.prediction.tokens, 10);
  EXPECT_LE(after.prediction.tokens, 60);
  GenerationRequest limited = asking("Name a river", 5);
  lengths.predict(limited);
  EXPECT_LE(limited.prediction.tokens, 5);
  EXPECT_NEAR(static_cast<double>(lengths.mean_tokens("Name a river", 400)), 30, 40);
}

TEST_F(AnswerLengthsTest, WhatEndsAtItsLimitAloneIsKnown) {
  AnswerLengths lengths(std::make_unique<RunningMeanPredictor>(kBuckets), {}, "m");
  GenerationRequest request = asking("any", 333);
  request.ignore_end = true;
  lengths.predict(request);
  EXPECT_EQ(request.prediction.tokens, 333);
  lengths.ended(request, 333, FinishReason::kLength);
  EXPECT_EQ(lengths.counts().learned + lengths.counts().waiting, 0U) << "it teaches nothing";
}

TEST_F(AnswerLengthsTest, NothingIsSaidWhereNothingIsGenerated) {
  AnswerLengths lengths(std::make_unique<RunningMeanPredictor>(kBuckets), {}, "m");
  GenerationRequest request = asking("scored", 0);
  lengths.predict(request);
  EXPECT_EQ(request.prediction.tokens, 0);
}

TEST_F(AnswerLengthsTest, OneThatWasCutOffTeachesWhereNothingIsKnown) {
  AnswerLengths lengths(std::make_unique<NgramPredictor>(kBuckets), {}, "m");
  GenerationRequest request = asking("any", 20);
  lengths.predict(request);
  lengths.ended(request, 20, FinishReason::kLength);
  const LengthCounts counts = lengths.counts();
  EXPECT_EQ(counts.right + counts.over + counts.under, 1U);
}

TEST_F(AnswerLengthsTest, OneThatWasCutOffTeachesWhereItWasLongerThanPredicted) {
  const auto counted = [](FinishReason reason, int64_t tokens) {
    AnswerLengths lengths(std::make_unique<RunningMeanPredictor>(kBuckets), {}, "m");
    teach(lengths, 50, 30);
    GenerationRequest request = asking("any");
    lengths.predict(request);
    lengths.ended(request, tokens, reason);
    const LengthCounts counts = lengths.counts();
    return counts.right + counts.over + counts.under - 50;
  };
  EXPECT_EQ(counted(FinishReason::kStop, 3), 1U);
  EXPECT_EQ(counted(FinishReason::kLength, 400), 1U);
  EXPECT_EQ(counted(FinishReason::kLength, 3), 0U);
  EXPECT_EQ(counted(FinishReason::kCancelled, 400), 0U);
  EXPECT_EQ(counted(FinishReason::kError, 400), 0U);
}

TEST_F(AnswerLengthsTest, WhatItLearnedIsThereForTheNextProcess) {
  const auto file = folder_ / "of/this.predictor";
  {
    AnswerLengths lengths(std::make_unique<NgramPredictor>(kBuckets), file, "a model");
    teach(lengths, 100, 30);
  }
  const auto kept = try_read_predictor(file);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->model, "a model");
  EXPECT_GE(kept->predictor.examples(), 100U);
}

TEST_F(AnswerLengthsTest, WhereNothingCanBeKeptThereIsAWarningWithThePath) {
  std::ofstream(folder_ / "occupied") << "a file";
  testing::internal::CaptureStderr();
  {
    AnswerLengths lengths(std::make_unique<NgramPredictor>(kBuckets),
                          folder_ / "occupied/this.predictor", "m");
    teach(lengths, 50, 30);
  }
  EXPECT_NE(testing::internal::GetCapturedStderr().find("occupied"), std::string::npos);
}

TEST_F(AnswerLengthsTest, AFolderIsAnEncoder) {
  const EncoderOpener open = [&](const std::filesystem::path& folder) {
    fail(ErrorCode::kUnsupported, "no encoder in {}", folder.native());
    return nullptr;
  };
  const std::string said =
      error_of([&] { make_answer_lengths(folder_.path().native(), "dummy:x", 512, open); });
  EXPECT_EQ(said, "no encoder in " + folder_.path().native());
}

TEST_F(AnswerLengthsTest, TheChoiceIsANameOrAFile) {
  EXPECT_EQ(make_answer_lengths("off", "dummy:x", 512, {}), nullptr);
  EXPECT_NE(make_answer_lengths("mean", "dummy:x", 512, {}), nullptr);
  const std::string said =
      error_of([&] { make_answer_lengths((folder_ / "none").native(), "dummy:x", 512, {}); });
  EXPECT_NE(said.find("none: no such file"), said.npos) << said;

  const auto file = folder_ / "bad.predictor";
  std::ofstream(file) << "not one";
  testing::internal::CaptureStderr();
  EXPECT_NE(make_answer_lengths(file.native(), "dummy:x", 512, {}), nullptr);
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("bad.predictor"), warning.npos) << warning;
}

// The kept predictor's buckets end at the shorter context, so it could never predict longer
// answers.
TEST_F(AnswerLengthsTest, WhatWasKeptWithShorterContextsIsBegunAnew) {
  const std::string before = std::getenv("XDG_CACHE_HOME") ? std::getenv("XDG_CACHE_HOME") : "";
  setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
  const auto promised = [](int64_t context) {
    const auto lengths = make_answer_lengths("auto", "dummy:opt-125m", context, {});
    GenerationRequest request = asking("Name a river");
    lengths->predict(request);
    teach(*lengths, 40, 30);
    return request.prediction.tokens;
  };
  EXPECT_EQ(promised(128), 256) << "nothing is known yet";
  EXPECT_LT(promised(128), 100);
  EXPECT_EQ(promised(4096), 256) << "begun anew";
  EXPECT_LT(promised(128), 100) << "longer ones are kept";
  before.empty() ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", before.c_str(), 1);
}

}  // namespace
}  // namespace spillway
