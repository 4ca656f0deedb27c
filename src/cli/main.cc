// SPDX-License-Identifier: Apache-2.0
// The spillway program: reads the command line, runs one command, maps errors to exit codes.
#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"

namespace {

int parse_and_run(int argc, char** argv) {
  CLI::App app{"Spillway runs large language models on machines that are too small for them.",
               "spillway"};
  app.set_version_flag("--version", std::string("spillway ") + SPILLWAY_VERSION);
  app.require_subcommand(1);
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "say more about what happens, on stderr");
  app.parse_complete_callback([&] {
    if (verbose) spillway::set_log_level(spillway::LogLevel::kInfo);
  });
  app.footer(
      "spillway COMMAND --help explains a command. A first try: spillway run smollm2 -p 'Once upon "
      "a time'");
  spillway::add_run_command(app);
  spillway::add_chat_command(app);
  spillway::add_inspect_command(app);
  spillway::add_eval_command(app);
  spillway::add_bench_command(app);
  spillway::add_tokenize_command(app);
  spillway::add_logits_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& done) {
    return done.get_exit_code();  // a command ran; this is its result
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fmt::print(stderr, "spillway: {}; see spillway --help\n", error.what());
    return static_cast<int>(spillway::ExitCode::kUsage);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  spillway::install_interrupt_handler();
  return spillway::run_guarded([&] { return parse_and_run(argc, argv); });
}
