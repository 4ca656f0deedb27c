// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace spillway {
namespace {

using testing::HasSubstr;
using testing::Not;

// Returns the message of the UsageError that run() threw, or "" if it threw none.
std::string usage_error(CommandLine& line, std::vector<std::string> words) {
  try {
    line.run(std::move(words));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

// Builds the commands spillway [--verbose] run|predictor train|secret.
class CommandLineTest : public testing::Test {
 protected:
  CommandLineTest() {
    line_.require_subcommand();
    line_.add_flag("-v,--verbose", verbose_, "say more");
    run_ = line_.add_subcommand("run", "generate");
    run_->add_option("-m,--model,MODEL", model_, "what to run")->required();
    auto* const ids = run_->add_option("--ids", ids_, "token ids");
    run_->add_option("--top-k", top_k_, "most likely ones")->check(in_range(0, 100))->excludes(ids);
    run_->add_option("--stop", stop_, "where to end")->allow_extra_args(false)->check(not_empty());
    run_->add_flag("--json", json_, "as JSON");
    run_->add_option("--order", order_, "of requests")
        ->check(one_of({"first", "fair"}))
        ->needs(run_->get_option("--json"))
        ->capture_default_str()
        ->group("Scheduling");
    run_->action([&] {
      verbose_when_run_ = verbose_;
      return 7;
    });
    auto* const predictor = line_.add_subcommand("predictor", "lengths");
    predictor->require_subcommand();
    predictor->add_subcommand("train", "learn")->action([] { return 3; });
    auto* const secret = line_.add_subcommand("secret", "for tests");
    secret->hide();
    secret->action([]() -> int { fail(ErrorCode::kIo, "no disk"); });
  }

  CommandLine line_{"A program.", "spillway"};
  Command* run_ = nullptr;
  std::string model_, ids_, order_ = "first";
  std::optional<int> top_k_;
  std::vector<std::string> stop_;
  bool json_ = false, verbose_ = false, verbose_when_run_ = false;
};

TEST_F(CommandLineTest, RunsTheActionAndReturnsItsExitCode) {
  EXPECT_EQ(line_.run({"run", "a.gguf", "--top-k", "40", "--stop", "x", "--stop", "y"}), 7);
  EXPECT_EQ(model_, "a.gguf");
  EXPECT_EQ(top_k_, 40);
  EXPECT_EQ(stop_, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(line_.run({"predictor", "train"}), 3);
}

TEST_F(CommandLineTest, OptionsOfTheProgramMayFollowTheCommand) {
  EXPECT_EQ(line_.run({"run", "a.gguf", "-v"}), 7);
  EXPECT_TRUE(verbose_when_run_);
}

TEST_F(CommandLineTest, CallsBackBetweenParsingAndTheAction) {
  bool ran_before = true;
  line_.on_parsed([&] { ran_before = verbose_when_run_; });
  line_.run({"-v", "run", "a.gguf"});
  EXPECT_FALSE(ran_before);
}

TEST_F(CommandLineTest, SaysWhatIsWrong) {
  EXPECT_THAT(usage_error(line_, {"run"}), HasSubstr("--model is required"));
  EXPECT_THAT(usage_error(line_, {"run", "a", "--nonsense"}), HasSubstr("--nonsense"));
  EXPECT_THAT(usage_error(line_, {"run", "a", "--top-k", "101"}), HasSubstr("not in range 0 to"));
  EXPECT_THAT(usage_error(line_, {"run", "a", "--stop", ""}), HasSubstr("is empty"));
  EXPECT_THAT(usage_error(line_, {"run", "a", "--top-k", "1", "--ids", "2"}),
              HasSubstr("--ids excludes --top-k"));
  EXPECT_THAT(usage_error(line_, {"run", "a", "--order", "fair"}), HasSubstr("requires --json"));
  EXPECT_THAT(usage_error(line_, {"run", "a", "--json", "--order", "last"}),
              HasSubstr("{first,fair}"));
  EXPECT_THAT(usage_error(line_, {"predictor"}), HasSubstr("subcommand is required"));
}

TEST_F(CommandLineTest, ErrorsOfActionsPassThrough) { EXPECT_THROW(line_.run({"secret"}), Error); }

TEST_F(CommandLineTest, KnowsItsCommandsAndOptions) {
  EXPECT_EQ(line_.subcommands().size(), 3U);
  EXPECT_EQ(line_.find_subcommand("run"), run_);
  EXPECT_EQ(line_.find_subcommand("ran"), nullptr);
  EXPECT_TRUE(line_.find_subcommand("secret")->hidden());
  EXPECT_FALSE(run_->hidden());
  EXPECT_FALSE(run_->requires_subcommand());
  const Command* const predictor = line_.find_subcommand("predictor");
  EXPECT_TRUE(predictor->requires_subcommand());
  EXPECT_EQ(predictor->find_subcommand("train")->full_name(), "spillway predictor train");
  EXPECT_TRUE(run_->has_option("--ids"));
  EXPECT_FALSE(run_->has_option("--id"));
  EXPECT_EQ(run_->options().size(), 6U);
  EXPECT_EQ(run_->get_option("MODEL")->name(), "--model");
  EXPECT_THROW(run_->get_option("--id"), Error);
}

TEST_F(CommandLineTest, HelpShowsOptionsUnderTheirHeadings) {
  EXPECT_THAT(line_.help(), HasSubstr("predictor"));
  EXPECT_THAT(line_.help(), Not(HasSubstr("secret")));
  run_->footer("An example.");
  const std::string help = run_->help();
  EXPECT_THAT(help, HasSubstr("Usage: spillway run [OPTIONS]"));
  EXPECT_THAT(help, HasSubstr("INT in [0 - 100]"));
  EXPECT_THAT(help, HasSubstr("\nScheduling:\n  --order TEXT:{first,fair}=first"));
  EXPECT_THAT(help, HasSubstr("An example."));
}

}  // namespace
}  // namespace spillway
