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

// An option, flag or positional argument of a command, which owns it. Not thread-safe.
class CommandOption {
 public:
  explicit CommandOption(CLI::Option* option) : option_(option) {}
  CommandOption(const CommandOption&) = delete;
  CommandOption& operator=(const CommandOption&) = delete;

  CommandOption* required(bool value = true);
  CommandOption* check(const ValueCheck& check);
  CommandOption* needs(CommandOption* other);
  CommandOption* excludes(CommandOption* other);
  CommandOption* expected(int values);
  // With `false`, a list option takes one value each time it is given.
  CommandOption* allow_extra_args(bool value);

  // These set how --help shows the option: its heading, its default, the type of its value, or all
  // that follows its name.
  CommandOption* group(const std::string& heading);
  CommandOption* capture_default_str();
  CommandOption* default_str(const std::string& text);
  CommandOption* type_name(const std::string& name);

  // Returns how often the option was given.
  size_t count() const;
  // Returns the main name: "--model" for "-m,--model,MODEL".
  std::string name() const;
  // Returns the flags: "-m" and "--model" for "-m,--model,MODEL".
  std::vector<std::string> flags() const;
  // Returns the values that were given, as they were typed.
  std::vector<std::string> values() const;

 private:
  friend class Command;
  CLI::Option* option_;  // owned by the command's CLI::App
};

// A command with its options and the commands below it, all of which it owns. Not thread-safe.
class Command {
 public:
  Command(CLI::App* app, const Command* parent);
  virtual ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

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

  // The text below the options in --help.
  void footer(const std::string& text);
  // Hides the command from --help.
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
  // Returns all options in the order in which they were added, without --help.
  std::vector<const CommandOption*> options() const;
  std::vector<const Command*> subcommands() const;
  // Returns nullptr if there is no subcommand of this name.
  const Command* find_subcommand(const std::string& name) const;
  // Returns the text of --help.
  std::string help() const;

 protected:
  CLI::App* app_;  // owned by the parent's CLI::App, or by the CommandLine

 private:
  CommandOption* keep(CLI::Option* option);

  const Command* parent_;
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

  // Parses the arguments (without the program's name) and runs the command; --help and --version
  // are printed. Returns the exit code. Throws UsageError, and what actions throw.
  int run(const std::vector<std::string>& arguments);

 private:
  explicit CommandLine(std::unique_ptr<CLI::App> app);

  std::unique_ptr<CLI::App> root_;
};

}  // namespace spillway
