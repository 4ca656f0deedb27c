// SPDX-License-Identifier: Apache-2.0
#include "serve/batch_lengths.h"

#include <gtest/gtest.h>

#include <string>

#include "predict/ngram_predictor.h"
#include "serve/test_folder.h"

namespace spillway {
namespace {

std::string line(int id, const std::string& prompt, const std::string& more = "") {
  return R"({"custom_id":")" + std::to_string(id) +
         R"(","method":"POST","url":"/v1/completions","body":{"prompt":")" + prompt + "\"" + more +
         "}}\n";
}

AnswerLengths taught() {
  auto predictor = std::make_unique<NgramPredictor>(LengthBuckets::geometric(16, 4096));
  for (int i = 0; i < 200; ++i) {
    predictor->learn({.text = "Name one"}, 20);
    predictor->learn({.text = "Write much"}, 500);
  }
  return AnswerLengths(std::move(predictor), {}, "m");
}

TEST(BatchLengthsTest, AQuarterOfTheRequestsIsAsLongAsPredictedEach) {
  const AnswerLengths lengths = taught();
  std::string text;
  for (int i = 0; i < 8; ++i)
    text += line(i, i % 2 == 0 ? "Name one" : "Write much", R"(,"max_tokens":2000)");
  const TestFolder folder;
  const BatchInput input(folder.write("in", text + "no request\n"));
  const auto answers = predicted_answers(input, lengths, 4096);
  ASSERT_EQ(answers.size(), 4U);
  EXPECT_LE(answers[0], 32);
  EXPECT_LE(answers[1], 32);
  EXPECT_GE(answers[2], 256);
  EXPECT_GE(answers[3], 256);
}

TEST(BatchLengthsTest, NoAnswerIsLongerThanItsRequestAllows) {
  const AnswerLengths lengths = taught();
  const TestFolder folder;
  const BatchInput input(folder.write("in", line(1, "Write much", R"(,"max_tokens":64)") +
                                                line(2, "Write much", R"(,"max_tokens":64)")));
  EXPECT_EQ(predicted_answers(input, lengths, 4096), std::vector<int64_t>(4, 64));
  EXPECT_EQ(predicted_answers(input, lengths, 16), std::vector<int64_t>(4, 16));
}

TEST(BatchLengthsTest, WithoutRequestsNothingIsPredicted) {
  const AnswerLengths lengths = taught();
  const TestFolder folder;
  const BatchInput input(folder.write("in", "no request\n"));
  EXPECT_TRUE(predicted_answers(input, lengths, 4096).empty());
}

}  // namespace
}  // namespace spillway
