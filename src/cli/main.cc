// SPDX-License-Identifier: Apache-2.0
// The spillway program: reads the command line, runs one command, maps errors to exit codes.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "cli/build_info.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/terminal.h"
#include "cli/usage_hint.h"
#include "cpu/features.h"
#include "storage/mapped_files.h"

namespace {

using spillway::Command;
using spillway::CommandLine;
using spillway::UsageError;

bool is_model_option(std::string_view word) {
  return word == "-m" || word == "--model" || word.starts_with("--model=") ||
         (word.starts_with("-m") && word.size() > 2);
}

// Moves -m MODEL to the place right after the command. The parser assigns positional arguments in
// the order it meets them, and the model's must be taken first. Commands with subcommands have no
// model argument.
std::vector<std::string> model_first(const CommandLine& app, std::vector<std::string> arguments) {
  const auto command = std::find_if(arguments.begin(), arguments.end(),
                                    [](const std::string& word) { return !word.starts_with('-'); });
  const auto end = std::find(command, arguments.end(), "--");
  if (command == arguments.end()) return arguments;
  const Command* const known = app.find_subcommand(*command);
  if (known != nullptr && known->requires_subcommand()) return arguments;
  const auto option = std::find_if(command + 1, end, is_model_option);
  if (option == end) return arguments;
  const bool is_whole = *option != "-m" && *option != "--model";
  const auto last = option + (is_whole || option + 1 == end ? 1 : 2);
  std::rotate(command + 1, option, last);
  return arguments;
}

int parse_and_run(const std::vector<std::string>& arguments) {
  CommandLine app("Spillway runs large language models on machines that are too small for them.",
                  "spillway");
  const std::string shortcomings(spillway::LineEditor::shortcomings());
  app.set_version(fmt::format("spillway {} (commit {}, {}{}{})", SPILLWAY_VERSION,
                              spillway::kBuildCommit, spillway::kBuildCuda,
                              shortcomings.empty() ? "" : ", ", shortcomings));
  app.require_subcommand();
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "say more about what happens, on stderr")->basic();
  std::string left_out;
  app.add_option("--without-cpu-features", left_out,
                 "do as if the processor lacked these instructions: some of " +
                     spillway::cpu_feature_names())
      ->placeholder("LIST")
      ->default_text("none");
  app.on_parsed([&] {
    if (verbose) spillway::set_log_level(spillway::LogLevel::kInfo);
    spillway::leave_out_cpu_features(left_out);
  });
  app.example("spillway chat smollm2");
  app.note(
      "Exit codes: 0 done, 1 the work failed, 2 wrong usage or unreadable input, 130 interrupted, "
      "143 terminated.");
  spillway::add_commands(app);
  if (arguments.empty()) {  // no command: the help is shown anyway
    spillway::print_now(app.help(spillway::HelpExtent::kBasic));
    return 0;
  }
  try {
    return app.run(model_first(app, arguments));
  } catch (const UsageError& error) {
    return spillway::report_error(spillway::ExitCode::kUsage,
                                  spillway::usage_hint(app, arguments, error));
  }
}

}  // namespace

int main(int argc, char** argv) {
  spillway::install_interrupt_handler();
  spillway::end_when_maps_lose_pages(spillway::error_line_start(),
                                     static_cast<int>(spillway::ExitCode::kFailed));
  return spillway::run_guarded([&] { return parse_and_run({argv + 1, argv + argc}); });
}
