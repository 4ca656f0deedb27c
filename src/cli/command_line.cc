// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "cli/terminal.h"

namespace spillway {
namespace {

// Returns the strings of `arguments` that are in `words`, in the order of `arguments`; the parser
// returns them in another order.
std::vector<std::string> in_order(std::vector<std::string> words,
                                  const std::vector<std::string>& arguments) {
  std::vector<std::string> ordered;
  // Goes backwards, since of equal words the parser has consumed the first ones.
  for (auto argument = arguments.rbegin(); argument != arguments.rend(); ++argument) {
    const auto found = std::ranges::find(words, *argument);
    if (found == words.end()) continue;
    ordered.push_back(*argument);
    words.erase(found);
  }
  std::ranges::reverse(ordered);
  return ordered;
}

template <class T>
constexpr bool is_list = OneOf<T, std::vector<std::string>, std::vector<std::filesystem::path>>;

template <class T>
std::string placeholder_of() {
  if constexpr (OneOf<T, float, double, std::optional<float>, std::optional<double>>) return "X";
  if constexpr (OneOf<T, std::filesystem::path, std::vector<std::filesystem::path>>) return "FILE";
  if constexpr (OneOf<T, std::string, std::optional<std::string>, std::vector<std::string>>)
    return "TEXT";
  return "N";
}

// Returns the value that an option has if it is not given; "" for an empty one.
template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return fmt::format("{}", value);
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return value.string();
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return fmt::format("{}", fmt::join(value, ","));
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value;
  }
  return "";
}

}  // namespace

CommandOption* CommandOption::required(bool value) {
  option_->required(value);
  shown_.is_required = value;
  return this;
}
CommandOption* CommandOption::check(const ValueCheck& check) {
  option_->check(check.validator());
  if (!check.placeholder().empty()) shown_.placeholder = check.placeholder();
  return this;
}
CommandOption* CommandOption::needs(CommandOption* other) {
  option_->needs(other->option_);
  return this;
}
CommandOption* CommandOption::excludes(CommandOption* other) {
  option_->excludes(other->option_);
  return this;
}
CommandOption* CommandOption::expected(int values) {
  option_->expected(values);
  return this;
}
CommandOption* CommandOption::allow_extra_args(bool value) {
  option_->allow_extra_args(value);
  return this;
}
CommandOption* CommandOption::basic() {
  shown_.is_basic = true;
  return this;
}
CommandOption* CommandOption::group(HelpGroup group) {
  shown_.group = group;
  return this;
}
CommandOption* CommandOption::default_text(const std::string& text) {
  shown_.default_text = text;
  return this;
}
CommandOption* CommandOption::placeholder(const std::string& text) {
  shown_.placeholder = text;
  return this;
}
CommandOption* CommandOption::show_required() {
  shown_.is_required = true;
  return this;
}
size_t CommandOption::count() const { return option_->count(); }
std::string CommandOption::positional() const { return option_->get_name(true); }
std::string CommandOption::name() const { return option_->get_name(); }

std::vector<std::string> CommandOption::flags() const {
  std::vector<std::string> all;
  for (const std::string& name : option_->get_snames()) all.push_back("-" + name);
  for (const std::string& name : option_->get_lnames()) all.push_back("--" + name);
  return all;
}

std::vector<std::string> CommandOption::values() const { return option_->results(); }

Command::Command(CLI::App* app, const Command* parent, std::string description)
    : app_(app), parent_(parent), description_(std::move(description)) {}
Command::~Command() = default;

void Command::begin_group(const std::string& heading) { next_group_ = heading; }

Command* Command::add_subcommand(const std::string& name, const std::string& description) {
  subcommands_.push_back(
      std::make_unique<Command>(app_->add_subcommand(name, description), this, description));
  subcommands_.back()->group_ = next_group_;
  return subcommands_.back().get();
}

CommandOption* Command::keep(CLI::Option* option, CommandOption::Shown shown) {
  if (parent_ == nullptr) shown.group = HelpGroup::kGeneral;
  if (option->get_positional()) shown.group = HelpGroup::kArguments;
  options_.push_back(std::make_unique<CommandOption>(option, std::move(shown)));
  return options_.back().get();
}

template <OptionValue T>
CommandOption* Command::add_option(const std::string& names, T& value,
                                   const std::string& description) {
  return keep(app_->add_option(names, value, description), {.text = description,
                                                            .placeholder = placeholder_of<T>(),
                                                            .default_text = text_of(value),
                                                            .is_list = is_list<T>});
}
template CommandOption* Command::add_option(const std::string&, std::string&, const std::string&);
template CommandOption* Command::add_option(const std::string&, std::filesystem::path&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, int&, const std::string&);
template CommandOption* Command::add_option(const std::string&, int64_t&, const std::string&);
template CommandOption* Command::add_option(const std::string&, uint16_t&, const std::string&);
template CommandOption* Command::add_option(const std::string&, uint64_t&, const std::string&);
template CommandOption* Command::add_option(const std::string&, float&, const std::string&);
template CommandOption* Command::add_option(const std::string&, double&, const std::string&);
template CommandOption* Command::add_option(const std::string&, std::optional<std::string>&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, std::optional<int>&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, std::optional<int64_t>&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, std::optional<float>&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, std::optional<double>&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, std::vector<std::string>&,
                                            const std::string&);
template CommandOption* Command::add_option(const std::string&, std::vector<std::filesystem::path>&,
                                            const std::string&);

CommandOption* Command::add_option_function(const std::string& names,
                                            std::function<void(const std::string&)> take,
                                            const std::string& description) {
  return keep(app_->add_option_function<std::string>(names, take, description),
              {.text = description, .placeholder = "TEXT"});
}

CommandOption* Command::add_flag(const std::string& names, bool& value,
                                 const std::string& description) {
  return keep(app_->add_flag(names, value, description), {.text = description});
}

CommandOption* Command::get_option(const std::string& name) const {
  const CLI::Option* const wanted = app_->get_option_no_throw(name);
  const auto found =
      std::ranges::find_if(options_, [&](const auto& option) { return option->option_ == wanted; });
  SPW_ASSERT(found != options_.end());
  return found->get();
}

void Command::example(const std::string& line) { examples_.push_back(line); }
void Command::note(const std::string& text) { notes_.push_back(text); }
void Command::hide() { app_->group(""); }
void Command::require_subcommand() { app_->require_subcommand(1); }

void Command::action(std::function<int()> run) {
  // The parser passes a result on by an exception.
  app_->final_callback([run = std::move(run)] { throw CLI::RuntimeError(run()); });
}

std::string Command::name() const { return app_->get_name(); }

std::string Command::full_name() const {
  return parent_ == nullptr ? name() : parent_->full_name() + " " + name();
}

bool Command::hidden() const { return app_->get_group().empty(); }
bool Command::requires_subcommand() const { return app_->get_require_subcommand_min() > 0; }

bool Command::has_option(const std::string& name) const {
  return app_->get_option_no_throw(name) != nullptr;
}

std::vector<const CommandOption*> Command::options() const {
  std::vector<const CommandOption*> all;
  for (const auto& option : options_) all.push_back(option.get());
  return all;
}

std::vector<const Command*> Command::subcommands() const {
  std::vector<const Command*> all;
  for (const auto& command : subcommands_) all.push_back(command.get());
  return all;
}

const Command* Command::find_subcommand(const std::string& name) const {
  const auto found = std::ranges::find_if(
      subcommands_, [&](const auto& command) { return command->name() == name; });
  return found == subcommands_.end() ? nullptr : found->get();
}

CommandLine::CommandLine(const std::string& description, const std::string& program)
    : CommandLine(std::make_unique<CLI::App>(description, program)) {}

CommandLine::CommandLine(std::unique_ptr<CLI::App> app)
    : Command(app.get(), nullptr, app->get_description()), root_(std::move(app)) {
  root_->fallthrough();
  root_->set_help_all_flag("--help-all");
}

CommandLine::~CommandLine() = default;

void CommandLine::set_version(const std::string& text) {
  root_->set_version_flag("--version", text);
}

void CommandLine::on_parsed(std::function<void()> call) {
  root_->parse_complete_callback(std::move(call));
}

const Command& CommandLine::parsed_command() const {
  const Command* command = this;
  for (const CLI::App* app = root_.get(); !app->get_subcommands().empty();) {
    app = app->get_subcommands().front();
    command = command->find_subcommand(app->get_name());
  }
  return *command;
}

int CommandLine::run(const std::vector<std::string>& arguments) {
  // The parser takes them in reverse.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    root_->parse(reversed);
  } catch (const CLI::RuntimeError& done) {
    return done.get_exit_code();  // an action ran and returned this
  } catch (const CLI::CallForHelp&) {
    print_now(parsed_command().help(HelpExtent::kBasic));
  } catch (const CLI::CallForAllHelp&) {
    print_now(parsed_command().help(HelpExtent::kAll));
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> words = in_order(root_->remaining(true), arguments);
    throw UsageError(fmt::format("not expected: {}", fmt::join(words, " ")), words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return root_->exit(error);  // --version
    throw UsageError(error.what());
  }
  return 0;
}

}  // namespace spillway
