// SPDX-License-Identifier: Apache-2.0
// spillway logits: writes raw logits for given ids, for parity tests.
#include <memory>

#include "base/error.h"
#include "base/printable.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/prompt_input.h"
#include "cli/session_flags.h"
#include "cli/terminal_services.h"
#include "engine/model_run.h"
#include "engine/perplexity.h"
#include "engine/session.h"
#include "storage/file_writer.h"

namespace spillway {
namespace {

struct LogitsOptions {
  SessionOptions session;
  std::string ids;
  std::string output;
};

int logits(const LogitsOptions& options) {
  const auto ids = parse_ids(options.ids);
  Session session(options.session, terminal_services());
  const ModelSpec& spec = session.loaded->model.spec;
  SPW_CHECK(static_cast<int64_t>(ids.size()) <= spec.max_context, kInvalidArgument,
            "{} ids, but the model's context is {}", ids.size(), spec.max_context);
  const auto tokens = static_cast<int64_t>(ids.size());
  session.load({.tokens = tokens, .prompt = tokens, .generated = 1});
  ModelRun model(session, {}, tokens);
  FileWriter out(options.output);
  forward_all(model.runner.decoder, model.runner.kv, ids, 0, [&](int64_t, const Activations& rows) {
    SPW_CHECK(!interrupted(), kCancelled, "stopped; {} was not written",
              printable_path(options.output));
    const auto count = static_cast<size_t>(rows.rows * rows.cols);
    out.write({rows.data, count * sizeof(float)});
  });
  out.commit();
  return 0;
}

}  // namespace

void add_logits_command(Command& app) {
  auto* command = app.add_subcommand(
      "logits", "float32 logits [ids, vocabulary] of given ids, for parity tests");
  command->hide();
  auto options = std::make_shared<LogitsOptions>();
  add_session_flags(*command, options->session);
  command->add_option("--ids", options->ids, "token ids, such as 1,15043")
      ->required()
      ->placeholder("LIST")
      ->basic();
  command->add_option("-o,--output", options->output, "file to write")
      ->required()
      ->placeholder("FILE")
      ->basic();
  command->action([options] { return logits(*options); });
}

}  // namespace spillway
