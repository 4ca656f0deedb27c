// SPDX-License-Identifier: Apache-2.0
#include "predict/predictor_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "storage/test_folder.h"

namespace spillway {
namespace {

NgramPredictor some_predictor() {
  NgramPredictor predictor(LengthBuckets::linear(512));
  for (int i = 0; i < 20; ++i) {
    predictor.learn({.text = "Write a story"}, 400);
    predictor.learn({.text = "Say yes"}, 1);
  }
  return predictor;
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(PredictorFileTest, ComesBackAsItWas) {
  const TempFolder folder;
  const NgramPredictor predictor = some_predictor();
  write_predictor(folder / "p", predictor, "a model");
  const auto read = try_read_predictor(folder / "p");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->model, "a model");
  EXPECT_EQ(read->predictor.examples(), 40U);
  EXPECT_EQ(read->predictor.buckets().edges(), predictor.buckets().edges());
  for (size_t i = 0; i < kLengthBuckets; ++i) {
    const LengthQuery query{.text = "Write a story about it"};
    EXPECT_EQ(read->predictor.predict(query).share(i), predictor.predict(query).share(i));
  }
}

TEST(PredictorFileTest, WhatWasHalfForgottenIsLearnedOnAsWithoutAFile) {
  const TempFolder folder;
  NgramPredictor predictor = some_predictor();
  predictor.forget_half();
  write_predictor(folder / "p", predictor, "a model");
  auto read = try_read_predictor(folder / "p");
  ASSERT_TRUE(read.has_value());
  const LengthQuery query{.text = "Say yes"};
  for (NgramPredictor* one : {&predictor, &read->predictor}) one->learn(query, 300);
  for (size_t i = 0; i < kLengthBuckets; ++i)
    EXPECT_EQ(read->predictor.predict(query).share(i), predictor.predict(query).share(i));
}

TEST(PredictorFileTest, RemembersWhoseEmbeddingsItLearnedFrom) {
  const TempFolder folder;
  const NgramPredictor predictor(LengthBuckets::linear(512), 3);
  write_predictor(folder / "p", predictor, "m", {.digest = "abc", .folder = "/some/encoder"});
  const auto read = try_read_predictor(folder / "p");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->encoder.digest, "abc");
  EXPECT_EQ(read->encoder.folder, "/some/encoder");
  EXPECT_EQ(read->predictor.more_slots(), 3U);
}

TEST(PredictorFileTest, NoFileIsNoPredictorAndNoWarning) {
  const TempFolder folder;
  testing::internal::CaptureStderr();
  EXPECT_FALSE(try_read_predictor(folder / "none").has_value());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(PredictorFileTest, ADamagedFileIsAWarningWithItsPath) {
  const TempFolder folder;
  write_predictor(folder / "good", some_predictor(), "m");
  const std::string good = bytes_of(folder / "good");
  std::string flipped = good, version = good, longer = good + "x";
  flipped[good.size() / 2] = static_cast<char>(flipped[good.size() / 2] ^ 1);
  version[good.find('\n') - 1] = '9';
  for (const std::string& bad : {std::string(), std::string("hello"), good.substr(0, 40),
                                 good.substr(0, good.size() - 1), flipped, version, longer}) {
    const auto path = folder.write("bad.predictor", bad);
    testing::internal::CaptureStderr();
    EXPECT_FALSE(try_read_predictor(path).has_value());
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("bad.predictor"), said.npos) << said;
    EXPECT_NE(said.find("fresh"), said.npos) << said;
  }
}

TEST(PredictorFileTest, AFolderInItsPlaceIsAWarning) {
  const TempFolder folder;
  testing::internal::CaptureStderr();
  EXPECT_FALSE(try_read_predictor(folder.path()).has_value());
  EXPECT_NE(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace spillway
