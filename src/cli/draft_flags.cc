// SPDX-License-Identifier: Apache-2.0
#include "cli/draft_flags.h"

#include <fmt/core.h>

#include <charconv>

#include "cli/command_line.h"
#include "cli/value_check.h"

namespace spillway {

CommandOption* add_draft_flag(Command& command, DraftOptions& options) {
  return command
      .add_option_function(
          "--draft",
          [&options](const std::string& value) {
            options.kind = value == "lookup" ? DraftKind::kLookup : DraftKind::kOff;
          },
          "propose tokens and check several in one step, where that is faster: lookup (what "
          "followed the last tokens earlier in prompt or answer) or off; changes no answer "
          "(docs/speculation.md)")
      ->check(one_of({"off", "lookup"}))
      ->default_text("off")
      ->group(HelpGroup::kSpeed);
}

void add_drawn_draft_flags(Command& command, DraftOptions& options) {
  auto* const lookup = add_draft_flag(command, options);
  auto* const acceptance =
      command
          .add_option_function(
              "--draft-acceptance",
              [&options](const std::string& value) {
                options.kind = DraftKind::kDrawn;
                std::from_chars(value.data(), value.data() + value.size(), options.acceptance);
              },
              "of a dummy model: propose any tokens in each step, and take each to be right with "
              "this probability, 0 to 1, as long as those before it are")
          ->check(in_range(0.0, 1.0))
          ->excludes(lookup)
          ->placeholder("X")
          ->group(HelpGroup::kSpeed);
  command
      .add_option("--draft-tokens", options.tokens,
                  fmt::format("with --draft-acceptance: tokens to propose in each step, at most {}",
                              kMostDrafts))
      ->check(in_range(1, kMostDrafts))
      ->needs(acceptance)
      ->group(HelpGroup::kSpeed);
}

}  // namespace spillway
