// SPDX-License-Identifier: Apache-2.0
// The spillway program: reads the command line, runs one command, maps errors to exit codes.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cpu/features.h"

namespace {

// What is wrong with the command line and where to read on.
std::string explain(const CLI::App& app, int argc, char** argv, const CLI::ParseError& error) {
  const std::string word = argc > 1 ? argv[1] : "";
  const auto commands =
      app.get_subcommands([](const CLI::App* c) { return !c->get_group().empty(); });
  const bool known = std::any_of(commands.begin(), commands.end(),
                                 [&](const CLI::App* c) { return c->get_name() == word; });
  if (known) return fmt::format("{}; see spillway {} --help", error.what(), word);
  std::string names;
  for (const CLI::App* command : commands) names += " " + command->get_name();
  if (word.empty() || word.starts_with('-'))
    return fmt::format("{}; commands are:{}", error.what(), names);
  return fmt::format("no command '{}'; commands are:{}", word, names);
}

int parse_and_run(int argc, char** argv) {
  CLI::App app{"Spillway runs large language models on machines that are too small for them.",
               "spillway"};
  app.set_version_flag("--version", std::string("spillway ") + SPILLWAY_VERSION);
  app.require_subcommand(1);
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "say more about what happens, on stderr");
  std::string left_out;
  app.add_option(
      "--without-cpu-features", left_out,
      "do as if the processor lacked these instructions: some of " + spillway::cpu_feature_names());
  app.parse_complete_callback([&] {
    if (verbose) spillway::set_log_level(spillway::LogLevel::kInfo);
    spillway::leave_out_cpu_features(left_out);
  });
  app.footer(
      "spillway COMMAND --help explains a command. Exit codes: 0 done, 1 the work failed, 2 wrong "
      "usage or unreadable input,\n"
      "130 interrupted. A first try: spillway run smollm2 -p 'Once upon "
      "a time'");
  spillway::add_run_command(app);
  spillway::add_chat_command(app);
  spillway::add_batch_command(app);
  spillway::add_inspect_command(app);
  spillway::add_eval_command(app);
  spillway::add_bench_command(app);
  spillway::add_profile_command(app);
  spillway::add_tokenize_command(app);
  spillway::add_convert_command(app);
  spillway::add_logits_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& done) {
    return done.get_exit_code();  // a command ran; this is its result
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return spillway::report_error(spillway::ExitCode::kUsage, explain(app, argc, argv, error));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  spillway::install_interrupt_handler();
  return spillway::run_guarded([&] { return parse_and_run(argc, argv); });
}
