// SPDX-License-Identifier: Apache-2.0
// spillway serve: runs an OpenAI-compatible server.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/plain_numbers.h"
#include "base/printable.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/concurrency_flags.h"
#include "cli/draft_flags.h"
#include "cli/encoder_option.h"
#include "cli/interrupt.h"
#include "cli/scheduling_flags.h"
#include "cli/session_flags.h"
#include "cli/template_option.h"
#include "cli/terminal.h"
#include "cli/terminal_services.h"
#include "cli/value_check.h"
#include "engine/model_catalog.h"
#include "engine/model_run.h"
#include "engine/result_settings.h"
#include "engine/session.h"
#include "serve/api/api_server.h"
#include "serve/http/connection_limit.h"
#include "serve/http/http_url.h"
#include "serve/job_fields.h"

namespace spillway {
namespace {

constexpr int kSequencesOnCpu = 32, kSequencesOnGpu = 64;
constexpr int64_t kShortestContext = 128;  // fewer tokens hold no conversation
// The request that plans are made for: about the usual size of a chat request.
constexpr int64_t kUsualPrompt = 512, kUsualAnswer = 256;

// Host memory for requests: their bodies, their parsed forms and their prompts. If --host-memory is
// given, the plan leaves kLeastRequestBytes free, and memory that the plan does not take is added.
constexpr uint64_t kRequestBytes = uint64_t{512} << 20, kLeastRequestBytes = uint64_t{2} << 20;

struct ServeOptions {
  SessionOptions session;
  SchedulingFlags scheduling;
  TemplateOption chat_template;
  HttpOptions http;
  std::string key_file;
  std::string name;
  int64_t context = 0;
  int max_sequences = 0;
  int max_queue = 256;
  bool json_log = false;
  bool log_prompts = false;
  bool trust_priorities = false;
  bool strict_fields = false;
  std::vector<std::string> aliases;
  std::vector<std::string> allowed_hosts;
  std::string share_prefixes = "key";
};

// Returns the name that clients call the model by: --name, or a file's name without its ending.
std::string model_name(const ServeOptions& options) {
  if (!options.name.empty()) return options.name;
  return shown_model_name(options.session.model);
}

// Reports the progress of loading to /health, and to the terminal.
class ServerProgress : public Progress {
 public:
  ServerProgress(ApiServer& server, std::unique_ptr<Progress> shown)
      : server_(server), shown_(std::move(shown)) {}
  void update(uint64_t done, uint64_t total, std::string_view detail) override {
    if (total > 0) server_.set_progress(static_cast<double>(done) / static_cast<double>(total));
    shown_->update(done, total, detail);
  }

 private:
  ApiServer& server_;
  std::unique_ptr<Progress> shown_;
};

SessionServices services_reporting_to(ApiServer& server) {
  SessionServices services = terminal_services();
  services.progress = [&server, shown = services.progress](std::string_view title) {
    return std::make_unique<ServerProgress>(server, start_progress(shown, title));
  };
  return services;
}

// Layer swapping is on by default if requests may wait for KV memory.
SessionOptions with_layer_swapping(const ServeOptions& options) {
  SessionOptions session = options.session;
  const bool may_wait = !options.scheduling.admits_whole() &&
                        may_preempt(session.compute.attention_topk, session.deterministic);
  session.placement.usual_kv_expansion = may_wait ? "auto" : "off";
  return session;
}

uint64_t host_bytes_taken(const AnswerLengths* lengths) {
  return kLeastRequestBytes + (lengths != nullptr ? lengths->network_bytes() : 0);
}

// Returns the memory for requests; call it once all memory of the run is taken.
uint64_t request_bytes(const ServeOptions& options, const Session& session, const Footprint& needs,
                       const AnswerLengths* lengths) {
  if (options.session.placement.host_memory.empty()) return kRequestBytes;
  const uint64_t planned = needs.of_host(!session.device->host_visible()).peak_bytes;
  const uint64_t used = std::max(planned, session.host().usage().total()) + needs.mapped +
                        needs.host_workspace + host_bytes_taken(lengths);
  const auto limit = static_cast<uint64_t>(session.host().info().memory_bytes);
  // Kernels and libraries may still allocate some.
  const uint64_t left = (limit - std::min(limit, used)) / 2;
  return std::min(kRequestBytes, kLeastRequestBytes + left);
}

ExpectedRun expected_run(const ServeOptions& options, const Session& session,
                         const AnswerLengths* lengths) {
  const int usual = session.device->host_visible() ? kSequencesOnCpu : kSequencesOnGpu;
  const int most = options.max_sequences > 0 ? options.max_sequences
                                             : session.planned_sequences().value_or(usual);
  const int64_t context = session.context_tokens(options.context);
  return {.tokens = context,
          .sequences = most,
          .prompt = std::min(kUsualPrompt, std::max<int64_t>(1, context / 2)),
          .generated = std::min(kUsualAnswer, std::max<int64_t>(1, context / 4)),
          .requests = 1000,
          .max_concurrent = options.scheduling.admits_whole() ? 0 : most,
          .host_bytes_taken = host_bytes_taken(lengths),
          .least_sequences = 1,
          .least_context = options.context > 0 ? 0 : kShortestContext,
          .shortest_tokens = kShortestContext,
          .sequences_option = "--max-sequences"};
}

void wait_for_the_end(ApiServer& server) {
  constexpr std::chrono::milliseconds kLook{50};
  while (!interrupted()) std::this_thread::sleep_for(kLook);
  const int outstanding = server.outstanding();
  server.drain();
  log_info("ending; {} answered first, Ctrl-C again ends at once",
           format_count(outstanding, "request"));
  while (!server.wait_until_drained(kLook)) {
  }
}

int serve(const ServeOptions& options) {
  give_large_blocks_back();  // for request bodies, which connections may free late
  if (options.json_log) set_log_format(LogFormat::kJson);
  set_log_level(LogLevel::kInfo);  // operators of a server want to see its log
  const SchedulingOptions scheduling = options.scheduling.options();
  ApiServerOptions asked{.http = options.http,
                         .keys = std::nullopt,
                         .model = ModelNames(model_name(options), options.aliases),
                         .version = program_version(),
                         .allowed_hosts = options.allowed_hosts};
  if (!options.key_file.empty()) asked.keys = KeyRing::from_file(options.key_file);
  // The server listens before the device is known, so the number of running requests is estimated.
  const int at_work = options.max_sequences > 0 ? options.max_sequences : kSequencesOnGpu;
  asked.http.most_connections =
      claim_connections(connections_for(static_cast<size_t>(at_work + options.max_queue)));
  if (!options.session.placement.host_memory.empty())
    asked.http.most_bodies_bytes = kLeastRequestBytes / 2;  // until there is a plan
  if (asked.http.most_client_connections == 0)
    asked.http.most_client_connections = connections_of_client(asked.http.most_connections);
  drain_on_interrupt();
  const bool is_locked = asked.keys.has_value();
  ApiServer server(std::move(asked));
  if (!is_locked && !HttpUrl{.host = options.http.host, .path = {}}.is_this_machine())
    log_warning(
        "others than this machine can call at {}, and there are no keys: give --api-key-file FILE, "
        "or --host 127.0.0.1 behind a proxy that asks for them",
        printable(options.http.host));
  Session session(with_layer_swapping(options), services_reporting_to(server));
  std::optional<ChatTemplate> chat;
  if (session.tokenizer() != nullptr)
    chat = options.chat_template.try_template(*session.tokenizer());
  const std::unique_ptr<AnswerLengths> lengths =
      make_answer_lengths(options.scheduling.length_predictor, resolve_model(options.session.model),
                          session.context_tokens(options.context), open_any_encoder);
  const ExpectedRun run = expected_run(options, session, lengths.get());
  session.choose_plan(run);
  log_info("{}", session.describe_plan());
  session.load();
  const int64_t context = session.planned_tokens();
  const int64_t sequences = session.plan().sequences.value_or(1);
  ModelRun served(session,
                  {.admission = RunOrder::Admission::kContinuous,
                   .reuse = RunOrder::Reuse::kAlways,
                   .store = Session::KvStoreHost::kWhereDiscrete,
                   .fits_fewer = true,
                   .may_wait = !options.scheduling.admits_whole(),
                   .usual = {{.prompt = run.prompt, .generated = run.generated}},
                   .scheduling = scheduling,
                   .lengths = lengths.get(),
                   .drafts = session.drafts()},
                  context, sequences);
  Engine& engine = served.engine();
  const ServingEstimate& estimate = served.estimate.value();
  const int most_running = served.options.admission.max_sequences;
  const ServedModel model(model_name(options), session.tokenizer(),
                          {.max_sequence_tokens = engine.max_sequence_tokens(),
                           .vocab_size = session.loaded->model.spec.vocab_size},
                          chat);
  // The server existed before the engine, but must stop before what it uses is destroyed.
  const auto stop = [](ApiServer* of) { of->stop(); };
  const std::unique_ptr<ApiServer, decltype(stop)> stopping(&server, stop);
  server.start(
      engine, model, most_running + options.max_queue,
      {.fingerprint = system_fingerprint(session.settings.fields()),
       .logs_prompts = options.log_prompts,
       .trusts_priorities = options.trust_priorities,
       .unknown_fields = options.strict_fields ? UnknownFields::kRefuse : UnknownFields::kIgnore,
       .request_bytes = request_bytes(options, session, session.resolved().needs, lengths.get()),
       .shares_among_keys = options.share_prefixes == "all"},
      {.model = model.name(),
       .plan = session.describe_plan(),
       .has_gpu = !session.device->host_visible(),
       .to_gpu_ceiling = estimate.to_gpu,
       .to_host_ceiling = estimate.to_host,
       .disk_read_ceiling = estimate.disk_read,
       .disk_write_ceiling = estimate.disk_write,
       .predicted_step_s = estimate.step_s});
  log_info(
      "{} requests running, {} waiting at most, contexts of {} tokens, {} tokens of prompts a "
      "step beside others",
      most_running, options.max_queue, context, estimate.prompt_tokens);
  print_now(fmt::format("serving {} at http://{}:{}\n", model.name(),
                        options.http.host.find(':') == std::string::npos
                            ? options.http.host
                            : "[" + options.http.host + "]",
                        server.port()));
  wait_for_the_end(server);
  return 0;
}

}  // namespace

void add_serve_command(Command& app) {
  auto* command = app.add_subcommand("serve", "answer requests over HTTP, as OpenAI's API does");
  auto options = std::make_shared<ServeOptions>();
  options->http.port = 8080;
  add_session_flags(*command, options->session);
  add_kv_store_flags(*command, options->session.kv_store);
  add_draft_flag(*command, options->session.drafts);
  command->add_option("--host", options->http.host, "address to listen at; 0.0.0.0 for all")
      ->placeholder("ADDRESS")
      ->group(HelpGroup::kServer)
      ->basic();
  command->add_option("--port", options->http.port, "port to listen at; 0 for any that is free")
      ->group(HelpGroup::kServer)
      ->basic();
  command
      ->add_option("--api-key-file", options->key_file,
                   "keys that clients must send, one a line; /health needs none")
      ->placeholder("FILE")
      ->default_text("all may call")
      ->group(HelpGroup::kServer)
      ->basic();
  command
      ->add_option("--cors", options->http.cors_origins,
                   "web pages of this origin may call, such as https://chat.example; * for all")
      ->placeholder("ORIGIN")
      ->default_text("none")
      ->group(HelpGroup::kServer);
  command
      ->add_option("--allowed-hosts", options->allowed_hosts,
                   "names that clients may call this server by, beside addresses and localhost, "
                   "with commas or repeated; * for any")
      ->placeholder("NAMES")
      ->default_text("checked only without keys at 127.0.0.1")
      ->group(HelpGroup::kServer);
  command
      ->add_option("--max-connections-per-client", options->http.most_client_connections,
                   "most connections of one address")
      ->check(in_range(1, 1 << 20))
      ->default_text("all but 256, and at least three quarters")
      ->group(HelpGroup::kServer);
  command
      ->add_option("--share-prefixes", options->share_prefixes,
                   "among which requests KV of equal beginnings is shared: those with the same "
                   "key, or all (then cached_tokens tells each client what others have sent)")
      ->check(one_of({"key", "all"}))
      ->group(HelpGroup::kKvCache);
  command->add_option("--name", options->name, "what clients call the model")
      ->placeholder("NAME")
      ->default_text("the file's name")
      ->group(HelpGroup::kServer)
      ->basic();
  command
      ->add_option("--alias", options->aliases,
                   "another name that clients may call the model; may be repeated; * for any")
      ->allow_extra_args(false)
      ->placeholder("NAME")
      ->group(HelpGroup::kServer);
  command
      ->add_flag("--strict-fields", options->strict_fields,
                 "refuse requests with unknown fields, which otherwise have no effect and are "
                 "named in the answer's header X-Spillway-Ignored")
      ->group(HelpGroup::kRequests);
  add_concurrency_flags(*command, options->context, options->max_sequences, kSequencesOnCpu,
                        kSequencesOnGpu);
  command
      ->add_option("--max-queue", options->max_queue,
                   "most requests that wait besides; more get status 429")
      ->check(in_range(0, 1 << 20))
      ->group(HelpGroup::kRequests);
  command
      ->add_flag("--trust-priorities", options->trust_priorities,
                 "clients may go before others (a priority below 0); behind them they always may")
      ->group(HelpGroup::kRequests);
  add_kv_expansion_flag(*command, options->session.placement);
  add_scheduling_flags(*command, options->scheduling, "fair");
  options->chat_template.add_to(*command);
  command->add_flag("--log-json", options->json_log, "log lines as JSON")
      ->group(HelpGroup::kOutput);
  command->add_flag("--log-prompts", options->log_prompts, "also log what is asked and answered")
      ->group(HelpGroup::kOutput);
  command->example("spillway serve smollm2");
  command->example(
      "curl http://127.0.0.1:8080/v1/chat/completions \\\n"
      "-d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi.\"}]}'");
  command->example(
      "spillway serve model.gguf --host 0.0.0.0 --api-key-file keys.txt \\\n--max-sequences 16");
  command->note(
      "SIGTERM or Ctrl-C: accepted requests are answered, then it ends; a second Ctrl-C ends it "
      "immediately.");
  command->action([options] { return serve(*options); });
}

}  // namespace spillway
