// SPDX-License-Identifier: Apache-2.0
// spillway run: generates text from one prompt and streams it to the terminal.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "cli/answer.h"
#include "cli/chat_encoder.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/draft_flags.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/predicted_json.h"
#include "cli/prompt_input.h"
#include "cli/sampling_options.h"
#include "cli/session_flags.h"
#include "cli/template_option.h"
#include "cli/terminal.h"
#include "cli/terminal_services.h"
#include "cli/value_check.h"
#include "cli/word_wrap.h"
#include "engine/engine_client.h"
#include "engine/model_run.h"
#include "engine/session.h"
#include "serve/completion_logprobs.h"
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
  bool chat = false;
  std::string system;
  TemplateOption chat_template;
  int logprobs = -1;
  bool json = false;
};

nlohmann::json logprobs_json(TokenId id, const Logprobs& logprobs, const Tokenizer* tokenizer) {
  nlohmann::json top = nlohmann::json::array();
  for (const TokenLogprob& entry : logprobs.top)
    top.push_back(
        {{"id", entry.id}, {"token", token_text(entry.id, tokenizer)}, {"logprob", entry.logprob}});
  return {{"id", id},
          {"token", token_text(id, tokenizer)},
          {"logprob", logprobs.chosen},
          {"top", std::move(top)}};
}

nlohmann::json result_json(const RunOptions& options, const GenerationRequest& request,
                           const Answer& answer, const Session& session) {
  nlohmann::json out{{"model", options.session.model},
                     {"prompt_ids", request.prompt},
                     {"ids", answer.ids},
                     {"text", answer.text},
                     {"finish_reason", finish_reason_name(answer.finish)},
                     {"seed", request.sampling.seed},
                     {"load_s", session.load_seconds},
                     {"first_token_s", answer.first_token_s},
                     {"total_s", answer.total_s}};
  if (request.sampling.logprobs >= 0) {
    out["logprobs"] = nlohmann::json::array();
    SPW_ASSERT(answer.logprobs.size() == answer.ids.size());
    for (size_t i = 0; i < answer.ids.size(); ++i)
      out["logprobs"].push_back(
          logprobs_json(answer.ids[i], answer.logprobs[i], session.tokenizer()));
  }
  return out;
}

// Prints the speed and why the answer ended, on a terminal only.
void print_speed(size_t prompt_tokens, const Answer& answer, int64_t context,
                 const Session& session) {
  if (!stderr_is_terminal() || answer.ids.empty()) return;
  const std::string cut = describe_cut(answer.finish, answer.ids.size(), prompt_tokens, context);
  const Prediction predicted = session.predict_run();
  fmt::print(stderr,
             "[prompt {} tokens, {:.2f} s to the first token ({:.2f} predicted); generated {} "
             "({:.1f}){}{}]\n",
             prompt_tokens, answer.first_token_s, predicted.first_token_s, describe_speed(answer),
             predicted.decode_tokens_per_s, cut.empty() ? "" : "; ", cut);
}

// Returns how many tokens prompt and answer may have together.
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

// Returns the prompt's tokens: the text as it is, or as a message to a chat model.
std::vector<TokenId> prompt_tokens(const RunOptions& options, const Prompt& input,
                                   const Session& session) {
  if (!options.chat) return input.to_tokens(*session.loaded);
  const Tokenizer& tokenizer = session.loaded->require_tokenizer(
      "leave out --chat, and give token ids instead of text, with --ids");
  const ChatEncoder encoder(
      tokenizer, options.chat_template.require_template(tokenizer, options.session.model));
  SPW_CHECK(options.system.empty() || encoder.supports_system_role(), kInvalidArgument,
            "this model's chat template has no place for --system");
  Conversation conversation;
  conversation.set_system(options.system);
  conversation.add_question(*input.text);
  return encoder.encode(conversation);
}

// Explains an empty answer: a chat model often has nothing to add to plain text.
void explain_empty_answer(const RunOptions& options, const Answer& answer,
                          const Tokenizer* tokenizer) {
  const bool ended = answer.finish == FinishReason::kStop && answer.is_blank();
  if (!ended || options.chat || tokenizer == nullptr) return;
  if (tokenizer->vocabulary().chat_template.empty()) return;
  log_warning(
      "the answer is empty; this model has a chat template: --chat sends the prompt as a "
      "message");
}

int run(RunOptions options) {
  // Read before the model is loaded, so that bad input is reported first.
  const Prompt input = options.prompt.read();
  require_utf8(options.system, "--system");
  GenerationRequest request;
  request.sampling = options.sampling.over(SamplingParams{.logprobs = options.logprobs});
  request.sampling.seed = options.sampling.choose_seed();

  Session session(options.session, terminal_services());
  request.prompt = prompt_tokens(options, input, session);
  const size_t prompt_size = request.prompt.size();
  SPW_CHECK(prompt_size > 0, kInvalidArgument,
            "the prompt is empty and this model has no BOS token to begin with; give some text");
  request.max_tokens = options.max_tokens;
  request.stop = options.sampling.stop;
  request.ignore_end = options.ignore_end;

  const int64_t limit = sequence_limit(options, session, prompt_size);
  const Tokenizer* tokenizer = session.tokenizer();
  SPW_CHECK(tokenizer != nullptr || request.stop.empty(), kInvalidArgument,
            "--stop needs a tokenizer: {}", session.loaded->no_tokenizer_reason);
  const auto prompt_length = static_cast<int64_t>(prompt_size);
  session.choose_plan({.tokens = limit,
                       .prompt = prompt_length,
                       .generated = std::max<int64_t>(1, limit - prompt_length),
                       .shortest_tokens = prompt_length + 1});
  session.report_plan();
  session.load();
  ModelRun model(session, {.reuse = RunOrder::Reuse::kWithStore, .drafts = session.drafts()},
                 limit);
  Engine& engine = model.engine();
  std::optional<EngineClient> client(engine);

  WordWrap wrap;
  if (!options.json && !options.chat && stdout_is_terminal() && tokenizer != nullptr) {
    // The prompt is shown dimmed, and the answer continues it.
    const std::string shown = replace_invalid_utf8(tokenizer->decode(request.prompt));
    print_now(fmt::format("\x1b[2m{}\x1b[0m", wrap.add(shown, stdout_columns())));
  }
  Answer answer;
  answer.finish = FinishReason::kLength;  // for max_tokens == 0, where nothing is generated
  if (options.max_tokens > 0) {
    answer = generate(*client, request, [&](const GenerationEvent& event) {
      if (options.json) return;
      if (tokenizer != nullptr) {
        print_now(wrap.add(event.text, stdout_columns()));
      } else if (event.token) {
        print_now(fmt::format("{} ", *event.token));
      }
    });
  }
  client.reset();
  if (options.json) {
    nlohmann::json out = result_json(options, request, answer, session);
    out["draft_proposed"] = engine.stats().draft_proposed;
    out["draft_accepted"] = engine.stats().draft_accepted;
    const auto generated = static_cast<double>(answer.ids.size());
    out["predicted"] =
        predicted_json(session.predict_run(), answer.total_s > 0 ? generated / answer.total_s : 0);
    print_json(out);
  } else {
    print_now("\n");
    print_speed(prompt_size, answer, limit, session);
  }
  if (answer.error) throw *answer.error;
  explain_empty_answer(options, answer, tokenizer);
  session.report_drift(model.runner.decoder.take_stats().host_linear);
  return answer.finish == FinishReason::kCancelled ? interrupt_exit_code() : 0;
}

}  // namespace

void add_run_command(Command& app) {
  auto* command =
      app.add_subcommand("run", "generate text from a prompt, streaming it as it comes");
  auto options = std::make_shared<RunOptions>();
  add_session_flags(*command, options->session);
  add_kv_store_flags(*command, options->session.kv_store);
  add_draft_flag(*command, options->session.drafts);
  options->prompt.add_to(*command, true);
  command->add_option("-n,--max-tokens", options->max_tokens, "most tokens to generate")
      ->check(in_range(0, 1 << 24))
      ->basic();
  command
      ->add_option("-c,--ctx", options->context,
                   "room for this many tokens, prompt included; 0 = as many as needed")
      ->check(not_negative());
  command->add_flag("--ignore-end", options->ignore_end, "go on past the model's end token");
  auto* const as_json =
      command->add_flag("--json", options->json, "print one JSON object instead of the text")
          ->group(HelpGroup::kOutput)
          ->basic();
  auto* const chat = command
                         ->add_flag("--chat", options->chat,
                                    "send the prompt as a message, with the model's chat template")
                         ->basic();
  for (const char* raw : {"--ids", "--no-special"}) chat->excludes(command->get_option(raw));
  command->add_option("--system", options->system, "with --chat: what the model is told before it")
      ->needs(chat)
      ->basic();
  options->chat_template.add_to(*command);
  command->get_option("--template")->needs(chat);
  options->sampling.add_to(*command, SamplingParams());
  command
      ->add_option("--logprobs", options->logprobs,
                   "with --json: log-probabilities of each token and the N most likely ones")
      ->needs(as_json)
      ->default_text("none")
      ->group(HelpGroup::kOutput);
  command->example("spillway run smollm2 'The capital of France is' -n 16");
  command->example("spillway run smollm2 --chat 'Tell me about rivers.'");
  command->example("git log -5 | spillway run smollm2 --chat --system 'Summarize this.'");
  command->example("spillway run model.gguf -f prompt.txt --temp 0.8 --top-p 0.95 --seed 7");
  command->example("spillway run ./opt-1.3b -p 'Once upon a time' --json | jq -r .text");
  command->action([options] { return run(*options); });
}

}  // namespace spillway
