// SPDX-License-Identifier: Apache-2.0
// spillway help: explains the program or a command.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/nearest_name.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "model/family.h"
#include "model/known_models.h"

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

// Adds words to text, in lines of at most 80 columns that begin with `indent` blanks.
void add_wrapped(std::string& text, const std::vector<std::string>& words, size_t indent) {
  size_t column = indent;
  for (const std::string& word : words) {
    if (column > indent && column + 1 + word.size() > 80) {
      text += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      text += ' ';
      ++column;
    }
    text += word;
    column += word.size();
  }
  text += '\n';
}

bool is_of(const Family& family, const TransformerShape& shape) {
  for (const KnownSizes& known : family.known)
    if (shape.name == known.name) return true;
  return family.known.empty() &&
         std::ranges::find(family.gguf_names, shape.family) != family.gguf_names.end();
}

// Returns the models that run, as the table of families has them.
std::string families_text() {
  std::string text =
      "The families of models that run. A file's family is general.architecture in a\n"
      "GGUF, and model_type in the config.json of a folder. The published sizes are\n"
      "known as dummy:NAME, to plan for a model without its files.\n";
  std::set<std::string> named;
  const auto add = [&](const char* what, std::span<const std::string_view> names) {
    text += fmt::format("  {:8}", what);
    add_wrapped(text, {names.begin(), names.end()}, 10);
  };
  const std::vector<std::string> known = known_model_names();
  for (const Family* family : families()) {
    text += fmt::format("\n{}\n", family->folder_names.front());
    if (!family->gguf_names.empty()) add("GGUF", family->gguf_names);
    add("folders", family->folder_names);
    std::vector<std::string> sizes;
    for (const std::string& name : known) {
      const auto shape = try_known_model(name);
      if (shape->executable && is_of(*family, *shape) && named.insert(name).second)
        sizes.push_back(name);
    }
    if (sizes.empty()) continue;
    text += "  sizes   ";
    add_wrapped(text, sizes, 10);
  }
  return text;
}

}  // namespace

void add_help_command(Command& app) {
  auto* command = app.add_subcommand("help", "explain a command");
  auto options = std::make_shared<HelpOptions>();
  command
      ->add_option("COMMAND", options->words,
                   "a command, such as run or predictor train; or families: the models that run")
      ->default_text("all of them, in a line each")
      ->basic();
  command->add_flag("--all", options->all, "show all options")->basic();
  command->example("spillway help --all run");
  command->example("spillway help families");
  command->action([&app, options] {
    if (options->words == std::vector<std::string>{"families"}) {
      print_now(families_text());
      return 0;
    }
    print_now(
        command_of(app, options->words).help(options->all ? HelpExtent::kAll : HelpExtent::kBasic));
    return 0;
  });
}

}  // namespace spillway
