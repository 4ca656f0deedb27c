// SPDX-License-Identifier: Apache-2.0
// The spillway program: reads the command line, runs one command, maps errors to exit codes.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/nearest_name.h"
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

// Moves -m MODEL to right behind the command. The parser assigns positional arguments in the order
// it meets them, and the model's must be taken first. Commands with subcommands have no such
// argument.
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

// Adds spillway help [COMMAND...].
void add_help_command(CommandLine& app) {
  auto* command = app.add_subcommand("help", "explain a command");
  auto words = std::make_shared<std::vector<std::string>>();
  command->add_option("COMMAND", *words,
                      "which, such as run or predictor train; without it, all of them in a line "
                      "each");
  command->action([&app, words] {
    const Command* asked = &app;
    for (const std::string& word : *words) {
      const Command* const below = asked->find_subcommand(word);
      std::vector<std::string> names;
      for (const Command* known : asked->subcommands()) names.push_back(known->name());
      const std::string meant = spillway::did_you_mean(word, names);
      SPW_CHECK(below != nullptr, kInvalidArgument, "no command '{}'{} {} lists them",
                fmt::join(*words, " "), meant.empty() ? ";" : meant,
                asked == &app ? "spillway help" : "spillway help " + asked->name());
      asked = below;
    }
    spillway::print_now(asked->help());
    return 0;
  });
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
  app.add_flag("-v,--verbose", verbose, "say more about what happens, on stderr");
  std::string left_out;
  app.add_option(
      "--without-cpu-features", left_out,
      "do as if the processor lacked these instructions: some of " + spillway::cpu_feature_names());
  app.on_parsed([&] {
    if (verbose) spillway::set_log_level(spillway::LogLevel::kInfo);
    spillway::leave_out_cpu_features(left_out);
  });
  app.footer(
      "spillway help COMMAND explains a command. Exit codes: 0 done, 1 the work failed, 2 wrong "
      "usage or unreadable input,\n"
      "130 interrupted, 143 terminated. A first try: spillway chat smollm2");
  spillway::add_run_command(app);
  spillway::add_chat_command(app);
  spillway::add_serve_command(app);
  spillway::add_batch_command(app);
  spillway::add_inspect_command(app);
  spillway::add_eval_command(app);
  spillway::add_bench_command(app);
  spillway::add_plan_command(app);
  spillway::add_profile_command(app);
  spillway::add_tokenize_command(app);
  spillway::add_predictor_command(app);
  spillway::add_convert_command(app);
  spillway::add_list_command(app);
  spillway::add_logits_command(app);
  add_help_command(app);
  if (arguments.empty()) {  // no command: the help is shown anyway
    spillway::print_now(app.help());
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
