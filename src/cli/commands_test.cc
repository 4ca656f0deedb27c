// SPDX-License-Identifier: Apache-2.0
// The help of all commands.
#include "cli/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "cli/command_line.h"

namespace spillway {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

constexpr size_t kMostColumns = 80, kMostBasicOptions = 12;

void add_with_subcommands(const Command& command, std::vector<const Command*>& all) {
  all.push_back(&command);
  for (const Command* below : command.subcommands()) add_with_subcommands(*below, all);
}

class CommandsTest : public testing::Test {
 protected:
  CommandsTest() {
    line_.add_flag("-v,--verbose", verbose_, "say more");
    add_commands(line_);
    add_with_subcommands(line_, all_);
  }

  CommandLine line_{"A program.", "spillway"};
  bool verbose_ = false;
  std::vector<const Command*> all_;
};

TEST_F(CommandsTest, NoLineOfHelpIsWiderThanATerminal) {
  for (const Command* command : all_) {
    for (const HelpExtent extent : {HelpExtent::kBasic, HelpExtent::kAll}) {
      std::istringstream help(command->help(extent));
      for (std::string line; std::getline(help, line);) {
        EXPECT_LE(line.size(), kMostColumns) << command->full_name() << ": " << line;
        EXPECT_THAT(line, testing::Not(EndsWith(" ")));
      }
    }
  }
}

TEST_F(CommandsTest, HelpHasFewOptionsAndSaysWhereTheOthersAre) {
  for (const Command* command : all_) {
    size_t basic = 0;
    for (const CommandOption* option : command->options()) basic += option->shown().is_basic;
    EXPECT_LE(basic, kMostBasicOptions) << command->full_name();
    EXPECT_THAT(command->help(HelpExtent::kBasic), EndsWith("--help-all\n"));
  }
}

TEST_F(CommandsTest, WhatCannotBeLeftOutIsInTheShortHelp) {
  for (const Command* command : all_)
    for (const CommandOption* option : command->options())
      EXPECT_TRUE(option->shown().is_basic || !option->shown().is_required)
          << command->full_name() << " " << option->name();
}

TEST_F(CommandsTest, HelpAllHasEveryOptionWithATextAndItsDefault) {
  for (const Command* command : all_) {
    const std::string help = command->help(HelpExtent::kAll);
    for (const CommandOption* option : command->options()) {
      const CommandOption::Shown& shown = option->shown();
      EXPECT_GT(shown.text.size(), 3U) << command->full_name() << " " << option->name();
      EXPECT_FALSE(shown.text.ends_with('.')) << shown.text;
      EXPECT_EQ(shown.text.find("default"), std::string::npos)
          << shown.text << ": defaults are declared, and added to the text";
      for (const std::string& flag : option->flags()) EXPECT_THAT(help, HasSubstr(flag));
    }
  }
}

TEST_F(CommandsTest, ShortHelpLeavesOutPlacementByHand) {
  const Command& run = *line_.find_subcommand("run");
  EXPECT_EQ(run.help(HelpExtent::kBasic).find("--weights"), std::string::npos);
  EXPECT_THAT(run.help(HelpExtent::kAll), HasSubstr("\nPlacement by hand:\n"));
  EXPECT_THAT(run.help(HelpExtent::kAll), HasSubstr("\n  --weights GPU,HOST,DISK  percent of"));
  EXPECT_THAT(run.help(HelpExtent::kAll), HasSubstr("most tokens to generate; default: 128\n"));
}

TEST_F(CommandsTest, TheProgramsHelpListsEveryCommandThatIsNotHidden) {
  const std::string help = line_.help(HelpExtent::kBasic);
  for (const Command* command : line_.subcommands())
    EXPECT_EQ(help.find("\n  " + command->name() + "  ") == std::string::npos, command->hidden())
        << command->name();
}

}  // namespace
}  // namespace spillway
