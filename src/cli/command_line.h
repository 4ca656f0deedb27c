// SPDX-License-Identifier: Apache-2.0
// The program's command line: commands, their options, and checks of values. It wraps CLI11, which
// takes seconds to compile; only command_line.cc and value_check.cc include it.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cli/value_check.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace spillway {

// Thrown for a command line that cannot be parsed; what() says what is wrong with it.
class UsageError : public std::runtime_error {
 public:
  explicit UsageError(const std::string& what, std::vector<std::string> unexpected = {})
      : std::runtime_error(what), unexpected_(std::move(unexpected)) {}

  // The words that no option or argument takes.
  const std::vector<std::string>& unexpected() const { return unexpected_; }

 private:
  std::vector<std::string> unexpected_;
};

template <class T, class... Types>
concept OneOf = (std::same_as<T, Types> || ...);

// The types that options are stored in. A new one is also instantiated in command_line.cc.
template <class T>
concept OptionValue = OneOf<T, std::string, std::filesystem::path, int, int64_t, uint16_t, uint64_t,
                            float, double, std::optional<std::string>, std::optional<int>,
                            std::optional<int64_t>, std::optional<float>, std::optional<double>,
                            std::vector<std::string>, std::vector<std::filesystem::path>>;

// The headings under which every command's help lists its options, in this order.
enum class HelpGroup {
  kArguments,  // where positional arguments are
  kBasics,     // where an option is that names no other group
  kWorkload,
  kRequests,
  kServer,
  kSampling,
  kOutput,
  kMemory,
  kCompression,
  kKvCache,
  kSpeed,
  kPlacement,
  kGeneral,  // where options of the whole program are
};

// Which options a help text has: those that a beginner needs first (--help), or all (--help-all).
enum class HelpExtent { kBasic, kAll };

// An option, flag or positional argument of a command, which owns it. Not thread-safe.
class CommandOption {
 public:
  // How help shows an option.
  struct Shown {
    std::string text = {};
    std::string placeholder = {};   // stands for the value; "" for a flag
    std::string default_text = {};  // "" where there is no default
    HelpGroup group = HelpGroup::kBasics;
    bool is_basic = false, is_list = false, is_required = false;
  };

  CommandOption(CLI::Option* option, Shown shown) : option_(option), shown_(std::move(shown)) {}
  CommandOption(const CommandOption&) = delete;
  CommandOption& operator=(const CommandOption&) = delete;

  CommandOption* required(bool value = true);
  CommandOption* check(const ValueCheck& check);
  CommandOption* needs(CommandOption* other);
  CommandOption* excludes(CommandOption* other);
  CommandOption* expected(int values);
  // With `false`, a list option takes one value each time it is given.
  CommandOption* allow_extra_args(bool value);

  // These set how help shows the option. Without basic() only --help-all shows it. The default is
  // that of the variable, and the placeholder that of its type or check, unless they are set here.
  CommandOption* basic();
  CommandOption* group(HelpGroup group);
  CommandOption* default_text(const std::string& text);
  CommandOption* placeholder(const std::string& text);
  // Shows the option as required, for a command that checks for it in its own words.
  CommandOption* show_required();

  const Shown& shown() const { return shown_; }
  // Returns how often the option was given.
  size_t count() const;
  // Returns "MODEL" for "-m,--model,MODEL", "" for an option that has no positional name.
  std::string positional() const;
  // Returns the main name: "--model" for "-m,--model,MODEL".
  std::string name() const;
  // Returns the flags: "-m" and "--model" for "-m,--model,MODEL".
  std::vector<std::string> flags() const;
  // Returns the values that were given, as they were typed.
  std::vector<std::string> values() const;

 private:
  friend class Command;
  CLI::Option* option_;  // owned by the command's CLI::App
  Shown shown_;
};

// A command with its options and the commands below it, all of which it owns. Not thread-safe.
class Command {
 public:
  Command(CLI::App* app, const Command* parent, std::string description = "");
  virtual ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Commands that are added after this are listed under the heading.
  void begin_group(const std::string& heading);
  Command* add_subcommand(const std::string& name, const std::string& description = "");
  // `names` is a list such as "-m,--model,MODEL"; a name without dashes is a positional argument.
  // `value` must outlive the command.
  template <OptionValue T>
  CommandOption* add_option(const std::string& names, T& value,
                            const std::string& description = "");
  // Calls `take` with the value while the command line is parsed.
  CommandOption* add_option_function(const std::string& names,
                                     std::function<void(const std::string&)> take,
                                     const std::string& description);
  CommandOption* add_flag(const std::string& names, bool& value, const std::string& description);
  // Returns an option that was added before.
  CommandOption* get_option(const std::string& name) const;

  // Adds a command line to the help; --help shows the first one only. Its lines after the first are
  // indented.
  void example(const std::string& line);
  // Adds a paragraph to --help-all. Lines that begin with a blank are not wrapped.
  void note(const std::string& text);
  // Hides the command from the list of commands.
  void hide();
  // Makes the command require one of its subcommands; it does nothing by itself.
  void require_subcommand();
  // Sets what the command does; `run` returns the exit code.
  void action(std::function<int()> run);

  const Command* parent() const { return parent_; }  // nullptr for the whole program
  std::string name() const;
  std::string full_name() const;  // "spillway predictor train"
  bool hidden() const;
  bool requires_subcommand() const;
  bool has_option(const std::string& name) const;
  // Returns all options in the order in which they were added, without --help and --help-all.
  std::vector<const CommandOption*> options() const;
  std::vector<const Command*> subcommands() const;
  // Returns nullptr if there is no subcommand of this name.
  const Command* find_subcommand(const std::string& name) const;
  // Returns the text of --help or --help-all, in lines of at most 80 columns (command_help.cc).
  std::string help(HelpExtent extent) const;

 protected:
  CLI::App* app_;  // owned by the parent's CLI::App, or by the CommandLine

 private:
  CommandOption* keep(CLI::Option* option, CommandOption::Shown shown);
  std::string help_of_subcommands() const;
  std::string help_of_options(HelpExtent extent) const;

  const Command* parent_;
  std::string group_;       // the heading of this command in its parent's list
  std::string next_group_;  // of the subcommands to come
  std::string description_;
  std::vector<std::string> examples_, notes_;
  std::vector<std::unique_ptr<CommandOption>> options_;
  std::vector<std::unique_ptr<Command>> subcommands_;
};

// The whole program; the options added here may also follow a command.
class CommandLine : public Command {
 public:
  CommandLine(const std::string& description, const std::string& program);
  ~CommandLine() override;

  void set_version(const std::string& text);
  // Sets a callback for when all is parsed, before the command's action.
  void on_parsed(std::function<void()> call);

  // Parses the arguments (without the program's name) and runs the command; --help, --help-all and
  // --version are printed. Returns the exit code. Throws UsageError, and what actions throw.
  int run(const std::vector<std::string>& arguments);

 private:
  explicit CommandLine(std::unique_ptr<CLI::App> app);
  const Command& parsed_command() const;  // the innermost one that was named

  std::unique_ptr<CLI::App> root_;
};

}  // namespace spillway
