// SPDX-License-Identifier: Apache-2.0
#include "cli/usage_hint.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/nearest_name.h"
#include "base/printable.h"

namespace spillway {
namespace {

constexpr const char* kPrompt = "PROMPT";

std::vector<std::string> listed_commands(const Command& parent) {
  std::vector<std::string> names;
  for (const Command* command : parent.subcommands())
    if (!command->hidden()) names.push_back(command->name());
  return names;
}

struct NamedCommand {
  const Command* command;
  std::string next;  // the first word that follows it and is not a command; "" if there is none
};

// Returns the innermost command that the words name; `line` itself if they name none.
NamedCommand named_command(const CommandLine& line, const std::vector<std::string>& arguments) {
  NamedCommand named{&line, ""};
  for (const std::string& word : arguments) {
    const Command* const below = named.command->find_subcommand(word);
    if (below != nullptr && !below->hidden()) {
      named = {below, ""};
    } else if (named.next.empty()) {
      named.next = word;
    }
    if (named.command->subcommands().empty()) break;
  }
  return named;
}

std::string subcommand_hint(const Command& parent, const std::string& word,
                            const UsageError& error) {
  const std::vector<std::string> names = listed_commands(parent);
  const bool is_command = !word.empty() && !word.starts_with('-');
  const std::string meant = is_command ? did_you_mean(word, names) : "";
  return fmt::format("{}{} {}: {}",
                     is_command ? fmt::format("no command '{}'", printable(word)) : error.what(),
                     meant.empty() ? ";" : meant,
                     parent.parent() != nullptr ? parent.full_name() + " has" : "commands are",
                     fmt::join(names, " "));
}

std::vector<std::string> known_flags(const CommandLine& line, const Command& command) {
  std::vector<std::string> flags = {"--help", "--help-all"};
  for (const Command* of : {&command, static_cast<const Command*>(&line)}) {
    for (const CommandOption* option : of->options()) {
      const std::vector<std::string> names = option->flags();
      flags.insert(flags.end(), names.begin(), names.end());
    }
  }
  return flags;
}

// Returns "--temp" for "--temp=1".
std::string flag_of(const std::string& word) { return word.substr(0, word.find('=')); }

// Finds the first word that looks like an option and is not one. The parser may have taken the
// value after it for something else, and complained about that.
std::optional<std::string> find_unknown_option(const CommandLine& line, const Command& command,
                                               const std::vector<std::string>& arguments) {
  const std::vector<std::string> flags = known_flags(line, command);
  for (const std::string& word : arguments) {
    if (word == "--") break;
    if (word.starts_with("--") && std::ranges::find(flags, flag_of(word)) == flags.end())
      return word;
  }
  return std::nullopt;
}

std::string unknown_option_hint(const CommandLine& line, const Command& command,
                                const std::string& word) {
  const std::string name = flag_of(word);
  const std::string meant = did_you_mean(name, known_flags(line, command));
  return fmt::format("unknown option {}{} see {} --help", printable(name),
                     meant.empty() ? ";" : meant, command.full_name());
}

// Quotes `text` as one word for a shell.
std::string quoted(const std::string& text) {
  const char mark = text.find('\'') == std::string::npos ? '\'' : '"';
  return fmt::format("{}{}{}", mark, printable(text), mark);
}

// Hint for a prompt without quotes, of which only the first word was taken as the prompt.
std::optional<std::string> try_unquoted_prompt_hint(const Command& command,
                                                    const std::vector<std::string>& unexpected) {
  if (!command.has_option(kPrompt)) return std::nullopt;
  const std::vector<std::string> given = command.get_option(kPrompt)->values();
  if (given.size() != 1) return std::nullopt;
  return fmt::format("the prompt has several words; put it in quotes: {}",
                     quoted(fmt::format("{} {}", given.front(), fmt::join(unexpected, " "))));
}

}  // namespace

std::string usage_hint(const CommandLine& line, const std::vector<std::string>& arguments,
                       const UsageError& error) {
  const NamedCommand named = named_command(line, arguments);
  const Command& command = *named.command;
  const auto& unexpected = error.unexpected();
  if (command.requires_subcommand()) return subcommand_hint(command, named.next, error);
  const auto option = std::ranges::find_if(
      unexpected, [](const std::string& word) { return word.starts_with('-') && word != "--"; });
  if (option != unexpected.end()) return unknown_option_hint(line, command, *option);
  if (unexpected.empty()) {
    if (const auto unknown = find_unknown_option(line, command, arguments))
      return unknown_option_hint(line, command, *unknown);
  } else {
    if (const auto hint = try_unquoted_prompt_hint(command, unexpected)) return *hint;
  }
  return fmt::format("{}; see {} --help", error.what(), command.full_name());
}

}  // namespace spillway
