// SPDX-License-Identifier: Apache-2.0
// spillway logits: raw logits of given ids, for parity tests.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/prompt_input.h"
#include "cli/session.h"
#include "engine/perplexity.h"

namespace spillway {
namespace {

struct LogitsOptions {
  SessionOptions session;
  std::string ids;
  std::string output;
};

int logits(const LogitsOptions& options) {
  const auto ids = parse_ids(options.ids);
  Session session(options.session);
  const ModelSpec& spec = session.loaded->model.spec;
  SPW_CHECK(static_cast<int64_t>(ids.size()) <= spec.max_context, kInvalidArgument,
            "{} ids, but the model's context is {}", ids.size(), spec.max_context);
  Runner runner = session.make_runner(static_cast<int64_t>(ids.size()));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(
      std::fopen(options.output.c_str(), "wb"), std::fclose);
  SPW_CHECK(out != nullptr, kIo, "{}: cannot be written", options.output);
  forward_all(runner.decoder, runner.kv, ids, 0, [&](int64_t, const Activations& rows) {
    const auto count = static_cast<size_t>(rows.rows * rows.cols);
    SPW_CHECK(std::fwrite(rows.data, sizeof(float), count, out.get()) == count, kIo,
              "{}: write failed", options.output);
  });
  SPW_CHECK(std::fflush(out.get()) == 0, kIo, "{}: write failed", options.output);
  return 0;
}

}  // namespace

void add_logits_command(CLI::App& app) {
  auto* command = app.add_subcommand(
      "logits", "float32 logits [ids, vocabulary] of given ids, for parity tests");
  command->group("");
  auto options = std::make_shared<LogitsOptions>();
  options->session.add_to(*command);
  command->add_option("--ids", options->ids, "token ids, e.g. 1,15043")->required();
  command->add_option("-o,--output", options->output, "file to write")->required();
  command->final_callback([options] { throw CLI::RuntimeError(logits(*options)); });
}

}  // namespace spillway
