// SPDX-License-Identifier: Apache-2.0
// spillway run: generate, streaming to the terminal.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/prompt_input.h"
#include "cli/sampling_options.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "engine/engine.h"
#include "text/utf8.h"

namespace spillway {
namespace {

struct RunOptions {
  SessionOptions session;
  PromptInput prompt;
  SamplingOptions sampling;
  int max_tokens = 128;
  int64_t context = 0;
  bool ignore_end = false;
  bool json = false;
};

struct RunResult {
  std::vector<TokenId> ids;
  std::string text;
  nlohmann::json logprobs = nlohmann::json::array();
  FinishReason finish = FinishReason::kStop;
  std::string error;
  double first_token_s = 0;
  double total_s = 0;
};

nlohmann::json logprobs_json(const Logprobs& logprobs) {
  nlohmann::json top = nlohmann::json::array();
  for (const TokenLogprob& entry : logprobs.top)
    top.push_back({{"id", entry.id}, {"logprob", entry.logprob}});
  return {{"logprob", logprobs.chosen}, {"top", top}};
}

RunResult generate(Engine& engine, GenerationRequest request, bool stream, bool with_text) {
  RunResult result;
  if (request.max_tokens == 0) {
    result.finish = FinishReason::kLength;
    return result;
  }
  const Stopwatch watch;
  const RequestId id = engine.submit(std::move(request));
  while (engine.step([&](const GenerationEvent& event) {
    if (event.token) {
      if (result.ids.empty()) result.first_token_s = watch.seconds();
      result.ids.push_back(*event.token);
    }
    if (event.logprobs) result.logprobs.push_back(logprobs_json(*event.logprobs));
    if (event.finish) result.finish = *event.finish;
    if (event.finish) result.error = event.error;
    result.text += event.text;
    if (!stream) return;
    if (with_text) {
      print_now(event.text);
    } else if (event.token) {
      print_now(fmt::format("{} ", *event.token));
    }
  })) {
    if (interrupted()) engine.cancel(id);
  }
  result.total_s = watch.seconds();
  return result;
}

nlohmann::json result_json(const RunOptions& options, const std::vector<TokenId>& prompt,
                           const RunResult& result, double load_s) {
  nlohmann::json out{{"model", options.session.model},
                     {"prompt_ids", prompt},
                     {"ids", result.ids},
                     {"text", result.text},
                     {"finish_reason", finish_reason_name(result.finish)},
                     {"seed", options.sampling.params.seed},
                     {"load_s", load_s},
                     {"first_token_s", result.first_token_s},
                     {"total_s", result.total_s}};
  if (options.sampling.params.logprobs >= 0) out["logprobs"] = result.logprobs;
  return out;
}

// On a terminal only: how fast it was.
void print_speed(size_t prompt_tokens, const RunResult& result) {
  if (!stderr_is_terminal() || result.ids.empty()) return;
  const double decode_s = result.total_s - result.first_token_s;
  const auto generated = static_cast<double>(result.ids.size());
  fmt::print(stderr, "[prompt {} tokens, {:.2f} s to the first token; generated {} tokens",
             prompt_tokens, result.first_token_s, result.ids.size());
  if (generated > 1) fmt::print(stderr, ", {:.1f} tokens/s", (generated - 1) / decode_s);
  fmt::print(stderr, "]\n");
}

// How many tokens prompt and answer may have together.
int64_t sequence_limit(const RunOptions& options, const Session& session, size_t prompt_tokens) {
  const bool given = options.context > 0;
  const int64_t limit =
      given ? session.context_tokens(options.context) : session.loaded->model.spec.max_context;
  const char* name = given ? "--ctx" : "the model's context";
  SPW_CHECK(
      static_cast<int64_t>(prompt_tokens) < limit, kInvalidArgument,
      "the prompt has {} tokens and needs room for at least one more, but {} is {}; shorten it",
      prompt_tokens, name, limit);
  return std::min(limit, static_cast<int64_t>(prompt_tokens) + options.max_tokens);
}

int run(RunOptions options) {
  // Before the model is loaded: bad input should not have to wait.
  const Prompt input = options.prompt.read();
  GenerationRequest request;
  request.sampling = options.sampling.parse();
  validate(request.sampling, std::numeric_limits<TokenId>::max());

  Session session(options.session);
  const std::vector<TokenId> prompt = input.to_tokens(*session.loaded);
  SPW_CHECK(!prompt.empty(), kInvalidArgument,
            "the prompt is empty and this model has no BOS token to begin with; give some text");
  request.prompt = prompt;
  request.max_tokens = options.max_tokens;
  request.stop = options.sampling.stop;
  request.ignore_end = options.ignore_end;

  const int64_t limit = sequence_limit(options, session, prompt.size());
  const Tokenizer* tokenizer = session.tokenizer();
  SPW_CHECK(tokenizer != nullptr || request.stop.empty(), kInvalidArgument,
            "--stop needs a tokenizer: {}", session.loaded->no_tokenizer_reason);
  session.load({.tokens = limit, .shortest_tokens = static_cast<int64_t>(prompt.size()) + 1});
  Runner runner = session.make_runner(limit);
  Engine engine(runner.decoder, runner.kv, tokenizer, {.max_sequence_tokens = limit});

  if (!options.json && stdout_is_terminal() && tokenizer != nullptr) {
    // The prompt, dimmed, so that the answer reads on from it.
    print_now(fmt::format("\x1b[2m{}\x1b[0m", replace_invalid_utf8(tokenizer->decode(prompt))));
  }
  const RunResult result =
      generate(engine, std::move(request), !options.json, tokenizer != nullptr);
  if (options.json) {
    print_json(result_json(options, prompt, result, session.load_seconds));
  } else {
    print_now("\n");
    print_speed(prompt.size(), result);
  }
  SPW_CHECK(result.finish != FinishReason::kError, kInternal, "{}", result.error);
  return result.finish == FinishReason::kCancelled ? interrupt_exit_code() : 0;
}

}  // namespace

void add_run_command(CLI::App& app) {
  auto* command =
      app.add_subcommand("run", "generate text from a prompt, streaming it as it comes");
  auto options = std::make_shared<RunOptions>();
  options->session.add_to(*command);
  options->prompt.add_to(*command, true);
  command->add_option("-n,--max-tokens", options->max_tokens, "generate at most this many tokens")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24));
  command
      ->add_option("--ctx", options->context,
                   "room for this many tokens, prompt included; 0 = as many as needed")
      ->capture_default_str()
      ->check(not_negative());
  command->add_flag("--ignore-end", options->ignore_end, "go on past the model's end token");
  command->add_flag("--json", options->json, "one JSON object instead of the text");
  options->sampling.add_to(*command);
  command->add_option("--logprobs", options->sampling.params.logprobs,
                      "in --json: log-probabilities of each token and the N most likely ones");
  command->footer(
      "Examples:\n"
      "  spillway run smollm2 -p 'The capital of France is' -n 16\n"
      "  spillway run model.gguf -f prompt.txt --temp 0.8 --top-p 0.95 --seed 7\n"
      "  spillway run ./opt-1.3b -p 'Once upon a time' --json | jq -r .text");
  command->final_callback([options] { throw CLI::RuntimeError(run(*options)); });
}

}  // namespace spillway
