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
    run_->add_option("-m,--model,MODEL", model_, "what to run")->required()->basic();
    auto* const ids = run_->add_option("--ids", ids_, "token ids");
    run_->add_option("--top-k", top_k_, "most likely ones")->check(in_range(0, 100))->excludes(ids);
    run_->add_option("--count", count_, "tokens")->basic();
    run_->add_option("--stop", stop_, "where to end")->allow_extra_args(false)->check(not_empty());
    run_->add_flag("--json", json_, "as JSON");
    run_->add_option("--order", order_, "of requests")
        ->check(one_of({"first", "fair"}))
        ->needs(run_->get_option("--json"))
        ->group(HelpGroup::kRequests);
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
  std::string help_of(const std::vector<std::string>& words) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(line_.run(words), 0);
    return testing::internal::GetCapturedStdout();
  }

  Command* run_ = nullptr;
  int count_ = 256;
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
  EXPECT_EQ(run_->options().size(), 7U);
  EXPECT_EQ(run_->get_option("MODEL")->name(), "--model");
  EXPECT_THROW(run_->get_option("--id"), Error);
}

TEST_F(CommandLineTest, HelpShowsWhatIsNeededFirstAndWhereTheRestIs) {
  run_->example("spillway run a.gguf");
  run_->example("spillway run b.gguf \\\n--json");
  run_->note("A note.");
  EXPECT_EQ(help_of({"run", "--help"}),
            "Usage: spillway run MODEL [OPTIONS]\n\nGenerate.\n"
            "\nExample:\n  spillway run a.gguf\n"
            "\nArguments:\n  MODEL                    what to run; also -m, --model\n"
            "\nBasics:\n  --count N                tokens; default: 256\n"
            "\nmore: spillway run --help-all\n");
}

TEST_F(CommandLineTest, HelpAllShowsAllOptionsUnderTheirHeadings) {
  run_->example("spillway run a.gguf");
  run_->example("spillway run b.gguf \\\n--json");
  run_->note("A note.\n  as it stands");
  const std::string help = help_of({"run", "--help-all"});
  EXPECT_THAT(help, HasSubstr("\nExamples:\n  spillway run a.gguf\n"
                              "  spillway run b.gguf \\\n    --json\n"));
  for (const CommandOption* option : run_->options())
    for (const std::string& flag : option->flags()) EXPECT_THAT(help, HasSubstr(flag));
  EXPECT_THAT(help,
              HasSubstr("\nRequests:\n  --order first|fair       of requests; default: first\n"));
  EXPECT_THAT(help, HasSubstr("\nGeneral:\n  -v, --verbose            say more\n"));
  EXPECT_THAT(help, HasSubstr("\nA note.\n  as it stands\n"));
  EXPECT_THAT(help, Not(HasSubstr("more:")));
}

TEST_F(CommandLineTest, HelpIsWrittenBeforeAnythingElseIsChecked) {
  EXPECT_EQ(help_of({"run", "--help"}), run_->help(HelpExtent::kBasic));
  EXPECT_EQ(help_of({"run", "a.gguf", "--help-all"}), run_->help(HelpExtent::kAll));
  EXPECT_EQ(help_of({"--help"}), line_.help(HelpExtent::kBasic));
  const Command* const predictor = line_.find_subcommand("predictor");
  EXPECT_EQ(help_of({"predictor", "-h"}), predictor->help(HelpExtent::kBasic));
  EXPECT_EQ(help_of({"predictor", "train", "--help"}),
            predictor->find_subcommand("train")->help(HelpExtent::kBasic));
}

TEST_F(CommandLineTest, HelpListsCommandsThatAreNotHidden) {
  line_.begin_group("For later");
  line_.add_subcommand("late", "end");
  const std::string help = line_.help(HelpExtent::kBasic);
  EXPECT_THAT(help, HasSubstr("\nCommands:\n  run        generate\n  predictor  lengths\n"));
  EXPECT_THAT(help, HasSubstr("\nFor later:\n  late       end\n"));
  EXPECT_THAT(help, Not(HasSubstr("secret")));
}

TEST_F(CommandLineTest, LongTextsAreWrappedUnderTheirColumn) {
  std::string text = "first";
  for (int i = 0; i < 30; ++i) text += " word";
  run_->add_option("--very-long-name-of-an-option", ids_, text);
  const std::string help = run_->help(HelpExtent::kAll);
  const std::string indent(27, ' ');
  EXPECT_THAT(help, HasSubstr("  --very-long-name-of-an-option TEXT\n" + indent + "first word"));
  EXPECT_THAT(help, HasSubstr("\n" + indent + "word word"));
}

}  // namespace
}  // namespace spillway
