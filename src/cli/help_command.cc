// SPDX-License-Identifier: Apache-2.0
// spillway help: explains the program or a command.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/nearest_name.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/terminal.h"

namespace spillway {
namespace {

struct HelpOptions {
  std::vector<std::string> words;
  bool all = false;
};

const Command& command_of(const Command& app, const std::vector<std::string>& words) {
  const Command* asked = &app;
  for (const std::string& word : words) {
    const Command* const below = asked->find_subcommand(word);
    std::vector<std::string> names;
    for (const Command* known : asked->subcommands()) names.push_back(known->name());
    const std::string meant = did_you_mean(word, names);
    SPW_CHECK(below != nullptr, kInvalidArgument, "no command '{}'{} {} lists them",
              fmt::join(words, " "), meant.empty() ? ";" : meant,
              asked == &app ? "spillway help" : "spillway help " + asked->name());
    asked = below;
  }
  return *asked;
}

}  // namespace

void add_help_command(Command& app) {
  auto* command = app.add_subcommand("help", "explain a command");
  auto options = std::make_shared<HelpOptions>();
  command->add_option("COMMAND", options->words, "a command, such as run or predictor train")
      ->default_text("all of them, in a line each")
      ->basic();
  command->add_flag("--all", options->all, "show all options")->basic();
  command->example("spillway help --all run");
  command->action([&app, options] {
    print_now(
        command_of(app, options->words).help(options->all ? HelpExtent::kAll : HelpExtent::kBasic));
    return 0;
  });
}

}  // namespace spillway
