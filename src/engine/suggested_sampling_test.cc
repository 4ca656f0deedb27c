// SPDX-License-Identifier: Apache-2.0
#include "engine/suggested_sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spillway {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

SamplingParams applied(const SuggestedSampling& suggested) {
  SamplingParams params{.temperature = 0.8F,
                        .top_k = 40,
                        .top_p = 0.95F,
                        .min_p = 0.05F,
                        .repetition_penalty = 1.1F,
                        .repetition_window = 64};
  suggested.apply_to(params);
  return params;
}

TEST(SuggestedSamplingTest, WhatTheFilesDoNotSayStaysAsItIs) {
  const SamplingParams params = applied(suggested_sampling(Metadata("config.json")));
  EXPECT_EQ(params.temperature, 0.8F);
  EXPECT_EQ(params.top_k, 40);
  EXPECT_EQ(params.repetition_window, 64);
}

TEST(SuggestedSamplingTest, ReadsGenerationConfig) {
  Metadata metadata("config.json");
  metadata.add("generation_config.do_sample", true);
  metadata.add("generation_config.temperature", 0.6);
  metadata.add("generation_config.top_k", int64_t{20});
  metadata.add("generation_config.top_p", 0.9);
  metadata.add("generation_config.min_p", int64_t{0});
  metadata.add("generation_config.repetition_penalty", 1.05);
  const SuggestedSampling suggested = suggested_sampling(metadata);
  EXPECT_TRUE(suggested.ignored.empty());
  const SamplingParams params = applied(suggested);
  EXPECT_EQ(params.temperature, 0.6F);
  EXPECT_EQ(params.top_k, 20);
  EXPECT_EQ(params.top_p, 0.9F);
  EXPECT_EQ(params.min_p, 0);
  EXPECT_EQ(params.repetition_penalty, 1.05F);
  EXPECT_EQ(params.repetition_window, 0) << "as transformers counts";
}

TEST(SuggestedSamplingTest, AModelThatIsNotToBeSampledIsGreedy) {
  Metadata metadata("config.json");
  metadata.add("generation_config.do_sample", false);
  metadata.add("generation_config.temperature", 0.6);
  EXPECT_EQ(applied(suggested_sampling(metadata)).temperature, 0);
}

TEST(SuggestedSamplingTest, ReadsTheKeysOfGguf) {
  Metadata metadata("m.gguf");
  metadata.add("general.sampling.temp", 1.5);
  metadata.add("general.sampling.top_k", int64_t{64});
  metadata.add("general.sampling.top_p", 0.5);
  metadata.add("general.sampling.min_p", 0.01);
  metadata.add("general.sampling.penalty_repeat", 1.2);
  metadata.add("general.sampling.penalty_last_n", int64_t{-1});
  const SamplingParams params = applied(suggested_sampling(metadata));
  EXPECT_EQ(params.temperature, 1.5F);
  EXPECT_EQ(params.top_k, 64);
  EXPECT_EQ(params.top_p, 0.5F);
  EXPECT_EQ(params.min_p, 0.01F);
  EXPECT_EQ(params.repetition_penalty, 1.2F);
  EXPECT_EQ(params.repetition_window, 0);
}

TEST(SuggestedSamplingTest, AWindowOfNothingInGgufTurnsThePenaltyOff) {
  Metadata metadata("m.gguf");
  metadata.add("general.sampling.penalty_last_n", int64_t{0});
  EXPECT_EQ(applied(suggested_sampling(metadata)).repetition_penalty, 1);
}

TEST(SuggestedSamplingTest, WhatMakesNoSenseIsNamedAndIgnored) {
  Metadata metadata("config.json");
  metadata.add("generation_config.temperature", std::string("hot"));
  metadata.add("generation_config.top_p", 1.5);
  metadata.add("generation_config.top_k", int64_t{-2});
  const SuggestedSampling suggested = suggested_sampling(metadata);
  EXPECT_THAT(suggested.ignored, ElementsAre(HasSubstr("generation_config.temperature"),
                                             HasSubstr("generation_config.top_k"),
                                             HasSubstr("generation_config.top_p")));
  const SamplingParams params = applied(suggested);
  EXPECT_EQ(params.temperature, 0.8F);
  EXPECT_EQ(params.top_p, 0.95F);
  EXPECT_EQ(params.top_k, 40);
}

}  // namespace
}  // namespace spillway
