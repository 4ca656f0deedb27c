// SPDX-License-Identifier: Apache-2.0
// spillway chat: a conversation, by the model's chat template.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/chat.h"
#include "cli/chat_encoder.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/draft_flags.h"
#include "cli/engine_source.h"
#include "cli/interrupt.h"
#include "cli/prompt_input.h"
#include "cli/sampling_options.h"
#include "cli/server_source.h"
#include "cli/session_flags.h"
#include "cli/template_option.h"
#include "cli/terminal_services.h"
#include "cli/value_check.h"
#include "engine/engine_client.h"
#include "engine/model_catalog.h"
#include "engine/model_run.h"
#include "engine/session.h"
#include "serve/http/key_ring.h"

namespace spillway {
namespace {

constexpr int64_t kShortestChatContext = 128;  // fewer tokens hold no conversation

// The usual defaults of other programs. The window of repetition_penalty is short, since a longer
// one always contains common words and the end-of-turn token.
const SamplingParams kDefaults{.temperature = 0.8F,
                               .top_k = 40,
                               .top_p = 0.95F,
                               .min_p = 0.05F,
                               .repetition_penalty = 1.1F,
                               .repetition_window = 64};

struct ChatOptions {
  SessionOptions session;
  SamplingOptions sampling;
  TemplateOption chat_template;
  std::string system;
  int max_tokens = 1024;
  int64_t context = 0;
  std::string server;  // URL of a server; "": a model is loaded here
  std::string key_file;
};

// Flags override what the model's files suggest, which overrides the defaults.
SamplingParams choose_sampling(const SamplingOptions& flags, const SuggestedSampling& suggested) {
  for (const std::string& what : suggested.ignored) log_warning("{}; it is ignored", what);
  SamplingParams params = kDefaults;
  suggested.apply_to(params);
  params = flags.over(params);
  params.seed = flags.choose_seed();
  log_info(
      "temperature {}, top-k {}, top-p {}, min-p {}, repetition penalty {} over {} tokens (0: "
      "all), seed {}",
      params.temperature, params.top_k, params.top_p, params.min_p, params.repetition_penalty,
      params.repetition_window, params.seed);
  return params;
}

int chat_with_model(const ChatOptions& options) {
  options.sampling.over(kDefaults);
  options.sampling.choose_seed();

  Session session(options.session, terminal_services());
  const Tokenizer& tokenizer = session.loaded->require_tokenizer(
      "a chat needs one; spillway run MODEL --ids continues token ids without");
  ChatEncoder encoder(tokenizer,
                      options.chat_template.require_template(tokenizer, options.session.model));
  const SamplingParams sampling = choose_sampling(options.sampling, session.loaded->sampling);
  validate(sampling, session.loaded->model.spec.vocab_size);

  session.choose_plan({.tokens = session.context_tokens(options.context),
                       .least_context = options.context > 0 ? 0 : kShortestChatContext,
                       .shortest_tokens = kShortestChatContext});
  session.report_plan();
  session.load();
  ModelRun model(session, {.reuse = RunOrder::Reuse::kAlways, .drafts = session.drafts()},
                 session.planned_tokens());
  EngineClient client(model.engine());
  EngineSource source(client, std::move(encoder),
                      {.name = shown_model_name(options.session.model),
                       .max_tokens = options.max_tokens,
                       .sampling = sampling,
                       .stop = options.sampling.stop});
  return talk(source, options.system, options.max_tokens);
}

int chat_with_server(const ChatOptions& options, bool max_tokens_given) {
  options.sampling.over({});  // reports bad flags before the server is contacted
  ServerSource::Options asked{.url = parse_http_url(options.server, "--server"),
                              .model = options.session.model,
                              .max_tokens = options.max_tokens,
                              .max_tokens_given = max_tokens_given,
                              .sampling = options.sampling};
  require_utf8(asked.model, "MODEL");
  for (const std::string& stop : options.sampling.stop) require_utf8(stop, "--stop");
  if (!options.key_file.empty()) asked.key = KeyRing::from_file(options.key_file).first();
  ServerSource source(std::move(asked), interrupted());
  return talk(source, options.system, options.max_tokens);
}

}  // namespace

void add_chat_command(Command& app) {
  auto* command = app.add_subcommand("chat", "talk with a model that has a chat template");
  auto options = std::make_shared<ChatOptions>();
  add_session_flags(*command, options->session);
  add_kv_store_flags(*command, options->session.kv_store);
  add_draft_flag(*command, options->session.drafts);
  auto* const model = command->get_option("MODEL")->required(false);
  options->chat_template.add_to(*command);
  command
      ->add_option("-c,--ctx", options->context,
                   "most tokens of the conversation; 0 = the model's, at most 4096")
      ->check(not_negative())
      ->basic();
  // All options so far except the model apply to loading it here, not to a server.
  std::vector<const CommandOption*> here;
  for (const CommandOption* option : command->options()) {
    if (option != model) here.push_back(option);
  }
  auto* const server =
      command
          ->add_option("--server", options->server,
                       "talk to the OpenAI-compatible server there instead of loading a model: "
                       "http://HOST:PORT, HOST:PORT or :PORT; MODEL is then its name there (the "
                       "first model, if left out)")
          ->placeholder("URL")
          ->group(HelpGroup::kServer)
          ->basic();
  command
      ->add_option("--api-key-file", options->key_file,
                   "with --server: the first key in this file is sent to it")
      ->needs(server)
      ->placeholder("FILE")
      ->group(HelpGroup::kServer);
  command->add_option("--system", options->system, "what the model is told before the conversation")
      ->basic();
  auto* const max_tokens =
      command->add_option("-n,--max-tokens", options->max_tokens, "most tokens of an answer")
          ->check(in_range(1, 1 << 24))
          ->basic();
  options->sampling.add_to(*command, kDefaults);
  command->example("spillway chat smollm2");
  command->example("echo 'Name three rivers.' | spillway chat smollm2");
  command->example("spillway chat --server http://127.0.0.1:8080");
  command->note(
      "A model's generation_config.json (or a GGUF file's general.sampling keys) replaces the "
      "sampling defaults, and options replace both; --verbose says what holds, and the seed. "
      "/help lists the commands of a talk.");
  command->note(
      "With --server only the sampling options that are given are sent; the server's defaults "
      "hold for the rest.");
  command->note(
      "Where input or output is no terminal, every line is a message (or a command), only answers "
      "are written, and a line that cannot be sent ends the talk with exit code 2.");
  command->action([=] {
    require_utf8(options->system, "--system");
    if (server->count() == 0) {
      if (model->count() == 0) throw UsageError(model->name() + " is required");
      return chat_with_model(*options);
    }
    for (const CommandOption* option : here)
      SPW_CHECK(option->count() == 0, kInvalidArgument,
                "{} is for a model that is loaded here, which --server does not do; leave it out",
                option->name());
    return chat_with_server(*options, max_tokens->count() > 0);
  });
}

}  // namespace spillway
