// SPDX-License-Identifier: Apache-2.0
// The texts of --help and --help-all.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "cli/command_line.h"

namespace spillway {
namespace {

constexpr size_t kHelpColumns = 80;
constexpr size_t kTextColumn = 27;  // where the texts of options begin

constexpr std::array<const char*, 13> kHeadings = {
    "Arguments",   "Basics",   "Workload", "Requests",
    "Server",      "Sampling", "Output",   "Device and memory",
    "Compression", "KV cache", "Speed",    "Placement by hand",
    "General"};
static_assert(kHeadings.size() == static_cast<size_t>(HelpGroup::kGeneral) + 1);

// Breaks one line between words so that it fits; the lines after the first begin at column
// `indent`, and the first one is taken to begin at column `column`.
std::string wrap_line(std::string_view line, size_t column, size_t indent) {
  std::string out;
  bool is_first = true;
  while (!line.empty()) {
    const size_t end = std::min(line.find(' '), line.size());
    const size_t blank = is_first ? 0 : 1;
    if (!is_first && column + blank + end > kHelpColumns) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else {
      out.append(blank, ' ');
      column += blank;
    }
    out += line.substr(0, end);
    column += end;
    line.remove_prefix(std::min(end + 1, line.size()));
    is_first = false;
  }
  return out + '\n';
}

// Returns a name and its text beside it, or below it if the name is long.
std::string entry_of(const std::string& name, const std::string& text, size_t text_column) {
  std::string out = "  " + name;
  if (out.size() + 2 > text_column)
    out += '\n' + std::string(text_column, ' ');
  else
    out.append(text_column - out.size(), ' ');
  return out + wrap_line(text, text_column, text_column);
}

// Returns "Generate text." for "generate text".
std::string sentence_of(std::string text) {
  if (text.empty()) return text;
  text.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(text.front())));
  if (!text.ends_with('.')) text += '.';
  return text;
}

std::string name_of(const CommandOption& option) {
  if (!option.positional().empty()) return option.positional();
  std::string name = fmt::format("{}", fmt::join(option.flags(), ", "));
  if (!option.shown().placeholder.empty()) name += " " + option.shown().placeholder;
  return name;
}

// Returns the option's text with what follows from its declaration: other names, whether it is
// required, its default.
std::string full_text_of(const CommandOption& option) {
  const CommandOption::Shown& shown = option.shown();
  std::string text = shown.text;
  if (!option.positional().empty() && !option.flags().empty())
    text += fmt::format("; also {}", fmt::join(option.flags(), ", "));
  if (option.positional().empty() && shown.is_required) text += "; required";
  if (!shown.default_text.empty()) text += "; default: " + shown.default_text;
  return text;
}

std::string usage_of(const Command& command) {
  std::string usage = "Usage: " + command.full_name();
  if (command.requires_subcommand()) return usage + " COMMAND";
  for (const CommandOption* option : command.options()) {
    const CommandOption::Shown& shown = option->shown();
    if (!option->positional().empty()) {
      const std::string word = option->positional() + (shown.is_list ? " ..." : "");
      usage += shown.is_required ? " " + word : " [" + word + "]";
    } else if (shown.is_required) {
      usage += fmt::format(" {} {}", option->flags().back(), shown.placeholder);
    }
  }
  return usage + " [OPTIONS]";
}

std::string entries_of(const std::vector<const CommandOption*>& options, HelpGroup group,
                       HelpExtent extent) {
  std::string out;
  for (const CommandOption* option : options) {
    if (option->shown().group != group) continue;
    if (extent == HelpExtent::kAll || option->shown().is_basic)
      out += entry_of(name_of(*option), full_text_of(*option), kTextColumn);
  }
  return out;
}

}  // namespace

std::string Command::help_of_subcommands() const {
  size_t widest = 0;
  for (const auto& command : subcommands_)
    if (!command->hidden()) widest = std::max(widest, command->name().size());
  std::string out, heading;
  for (const auto& command : subcommands_) {
    if (command->hidden()) continue;
    const std::string& group = command->group_.empty() ? "Commands" : command->group_;
    if (group != heading) out += fmt::format("\n{}:\n", group);
    heading = group;
    out += entry_of(command->name(), command->description_, widest + 4);
  }
  return out;
}

std::string Command::help_of_options(HelpExtent extent) const {
  const bool is_all = extent == HelpExtent::kAll;
  std::vector<const CommandOption*> known = options();
  if (is_all && parent_ != nullptr) {  // options of the program may follow each command
    const Command* program = parent_;
    while (program->parent() != nullptr) program = program->parent();
    for (const CommandOption* option : program->options()) known.push_back(option);
  }
  std::string out;
  for (size_t i = 0; i < kHeadings.size(); ++i) {
    const auto group = static_cast<HelpGroup>(i);
    std::string entries = entries_of(known, group, extent);
    if (group == HelpGroup::kGeneral && is_all) {
      entries += entry_of("-h, --help", "show the options needed first", kTextColumn);
      entries += entry_of("--help-all", "show all options", kTextColumn);
      if (parent_ == nullptr) entries += entry_of("--version", "show the version", kTextColumn);
    }
    if (!entries.empty()) out += fmt::format("\n{}:\n{}", kHeadings[i], entries);
  }
  return out;
}

std::string Command::help(HelpExtent extent) const {
  const bool is_all = extent == HelpExtent::kAll;
  constexpr size_t kUsageIndent = 7;
  std::string out = wrap_line(usage_of(*this), 0, kUsageIndent);
  out += '\n' + wrap_line(sentence_of(description_), 0, 0);
  const size_t examples = is_all ? examples_.size() : std::min<size_t>(1, examples_.size());
  if (examples > 0) out += examples > 1 ? "\nExamples:\n" : "\nExample:\n";
  for (size_t i = 0; i < examples; ++i) {
    std::string line = examples_[i];
    for (size_t at = line.find('\n'); at != line.npos; at = line.find('\n', at + 1))
      line.insert(at + 1, "    ");
    out += "  " + line + '\n';
  }
  out += help_of_subcommands() + help_of_options(extent);
  for (size_t i = 0; is_all && i < notes_.size(); ++i) {
    out += '\n';
    for (std::string_view rest = notes_[i]; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      out += line.starts_with(' ') ? std::string(line) + '\n' : wrap_line(line, 0, 0);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  if (!is_all) {
    out += fmt::format("\nmore: {}{} --help-all\n", full_name(),
                       requires_subcommand() ? " COMMAND --help, " + full_name() : "");
  }
  return out;
}

}  // namespace spillway
