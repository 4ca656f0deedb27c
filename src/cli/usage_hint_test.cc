// SPDX-License-Identifier: Apache-2.0
#include "cli/usage_hint.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace spillway {
namespace {

class UsageHintTest : public testing::Test {
 protected:
  UsageHintTest() {
    line_.require_subcommand();
    line_.add_flag("-v,--verbose", verbose_, "say more");
    auto* const run = line_.add_subcommand("run", "generate");
    run->add_option("-m,--model,MODEL", model_)->required();
    run->add_option("-p,--prompt,PROMPT", prompt_);
    run->add_option("--temp,--temperature", temperature_);
    run->action([] { return 0; });
    auto* const chat = line_.add_subcommand("chat", "talk");
    chat->add_option("MODEL", model_);
    chat->action([] { return 0; });
    auto* const predictor = line_.add_subcommand("predictor", "lengths");
    predictor->require_subcommand();
    auto* const train = predictor->add_subcommand("train", "learn");
    train->add_option("DATA", model_)->required();
    train->action([] { return 0; });
    line_.add_subcommand("logits", "for tests")->hide();
  }
  std::string hint(const std::vector<std::string>& words) {
    try {
      line_.run(words);
    } catch (const UsageError& error) {
      return usage_hint(line_, words, error);
    }
    return "";
  }

  CommandLine line_{"A program.", "spillway"};
  std::string model_;
  std::optional<std::string> prompt_;
  double temperature_ = 0;
  bool verbose_ = false;
};

TEST_F(UsageHintTest, APromptWithoutQuotesIsShownInQuotes) {
  EXPECT_EQ(hint({"run", "smollm2", "The", "capital", "of", "France", "is"}),
            "the prompt has several words; put it in quotes: 'The capital of France is'");
  EXPECT_EQ(hint({"run", "smollm2", "--temp", "1", "It's", "it's", "late"}),
            "the prompt has several words; put it in quotes: \"It's it's late\"");
  EXPECT_EQ(hint({"-v", "run", "smollm2", "a", "b", "-v", "a"}),
            "the prompt has several words; put it in quotes: 'a b a'");
}

TEST_F(UsageHintTest, WordsThatNothingTakesKeepTheirOrder) {
  EXPECT_EQ(hint({"chat", "smollm2", "Who", "are", "you"}),
            "not expected: Who are you; see spillway chat --help");
}

TEST_F(UsageHintTest, AMisspelledOptionGetsTheNearestOne) {
  EXPECT_EQ(hint({"run", "smollm2", "x", "--temprature", "1"}),
            "unknown option --temprature; did you mean --temperature? see spillway run --help");
  EXPECT_EQ(hint({"run", "smollm2", "x", "--promt=y"}),
            "unknown option --promt; did you mean --prompt? see spillway run --help");
  EXPECT_EQ(hint({"run", "smollm2", "--verbos"}),
            "unknown option --verbos; did you mean --verbose? see spillway run --help");
  EXPECT_EQ(hint({"run", "smollm2", "--nonsense"}),
            "unknown option --nonsense; see spillway run --help");
  // The parser takes its value for a second prompt.
  EXPECT_EQ(hint({"run", "smollm2", "--temprature", "1", "-p", "x"}),
            "unknown option --temprature; did you mean --temperature? see spillway run --help");
  EXPECT_EQ(hint({"run", "smollm2", "y", "-p", "x", "--", "--temprature"}).find("unknown option"),
            std::string::npos);
}

TEST_F(UsageHintTest, AMisspelledCommandGetsTheNearestOne) {
  EXPECT_EQ(hint({"rnu", "smollm2"}),
            "no command 'rnu'; did you mean run? commands are: run chat predictor");
  EXPECT_EQ(hint({"nonsense"}), "no command 'nonsense'; commands are: run chat predictor");
  EXPECT_EQ(hint({"predictor", "trian"}),
            "no command 'trian'; did you mean train? spillway predictor has: train");
}

TEST_F(UsageHintTest, OtherErrorsSayWhereToReadOn) {
  EXPECT_EQ(hint({"run"}), "--model is required; see spillway run --help");
  EXPECT_EQ(hint({"predictor", "train"}), "DATA is required; see spillway predictor train --help");
  EXPECT_EQ(hint({"predictor"}), "A subcommand is required; spillway predictor has: train");
  EXPECT_EQ(hint({"-v"}), "A subcommand is required; commands are: run chat predictor");
}

}  // namespace
}  // namespace spillway
