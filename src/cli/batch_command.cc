// SPDX-License-Identifier: Apache-2.0
// spillway batch: answers a file of OpenAI batch requests; a job that was killed can be resumed.
#include <fmt/core.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/plain_numbers.h"
#include "base/printable.h"
#include "base/stopwatch.h"
#include "cli/batch_identity.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/concurrency_flags.h"
#include "cli/draft_flags.h"
#include "cli/encoder_option.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/predicted_json.h"
#include "cli/scheduling_flags.h"
#include "cli/session_flags.h"
#include "cli/template_option.h"
#include "cli/terminal.h"
#include "cli/terminal_services.h"
#include "engine/engine_client.h"
#include "engine/model_catalog.h"
#include "engine/model_fingerprint.h"
#include "engine/model_run.h"
#include "engine/result_settings.h"
#include "engine/session.h"
#include "serve/batch_input.h"
#include "serve/batch_job.h"
#include "serve/batch_journal.h"
#include "serve/batch_lengths.h"
#include "serve/finished_output.h"
#include "serve/result_lines.h"
#include "serve/served_model.h"

namespace spillway {
namespace {

constexpr int kSequencesOnCpu = 64;
constexpr int kSequencesOnGpu = 256;
constexpr int64_t kShortestContext = 64;
constexpr int64_t kBytesOfToken = 4;  // estimated bytes of a request's line for each token
constexpr int kWaiting = 8;           // requests in the engine beyond those that run
constexpr int kChosenFrom = 64;       // the same if admission order follows predicted lengths
// The field `created` of results. It is fixed, since no clock and no file date may change their
// bytes.
constexpr int64_t kCreated = 0;
constexpr double kSyncSeconds = 1;  // a power failure loses at most what was written in this time

struct BatchOptions {
  SessionOptions session;
  // Scheduling changes no result: a request's result does not depend on the others.
  SchedulingFlags scheduling;
  std::filesystem::path input;
  std::filesystem::path output;
  int64_t context = 0;
  int max_sequences = 0;  // 0 = the device's default
  TemplateOption chat_template;
  bool not_deterministic = false;
  bool strict_fields = false;
  bool restart = false;
  bool json = false;
};

// Returns the session's options for this job. Every option of the command is named here: one that
// changes a byte of the output must become part of the BatchIdentity, through the session's
// settings or by itself. A new option stops this from compiling until that is decided.
SessionOptions session_options(const BatchOptions& options) {
  const auto& [session, scheduling, input, output, context, max_sequences, chat_template,
               not_deterministic, strict_fields, restart, json] = options;
  SessionOptions out = session;
  out.deterministic = !not_deterministic;
  return out;
}

// Describes the whole job, not the requests that are left: placement changes the last bits of
// results, so it must not depend on when a job was interrupted. With less memory, fewer requests
// run concurrently.
ExpectedRun expected_run(const BatchOptions& options, const BatchInput& input,
                         const Session& session, int64_t context, const AnswerLengths* lengths) {
  const int usual = session.device->host_visible() ? kSequencesOnCpu : kSequencesOnGpu;
  const int asked = options.max_sequences > 0 ? options.max_sequences : usual;
  // A resumed job runs at most as many sequences as its plan was made for.
  const int planned = session.planned_sequences().value_or(asked);
  const int most = options.max_sequences > 0 ? std::min(options.max_sequences, planned) : planned;
  const uint64_t requests = std::max<uint64_t>(1, input.size());
  const auto bytes = static_cast<int64_t>(input.bytes() / requests);
  return {
      .tokens = context,
      .sequences = static_cast<int64_t>(std::min<uint64_t>(requests, static_cast<uint64_t>(most))),
      .prompt = std::clamp<int64_t>(bytes / kBytesOfToken, 1, std::max<int64_t>(1, context / 2)),
      .requests = static_cast<int64_t>(requests),
      .answers =
          lengths != nullptr ? predicted_answers(input, *lengths, context) : std::vector<int64_t>{},
      .max_concurrent = options.scheduling.admits_whole()
                            ? 0
                            : std::min(static_cast<int64_t>(requests), int64_t{asked}),
      .host_bytes_taken = lengths != nullptr ? lengths->network_bytes() : 0,
      .results_are_fixed = true,
      .least_sequences = 1,
      .shortest_tokens = kShortestContext};
}

// Refuses to overwrite an existing output that is not this job's, and says why.
[[noreturn]] void refuse_output(const std::filesystem::path& path, const FinishedOutput& found,
                                const BatchIdentity& identity) {
  constexpr const char* kAdvice = "give another -o, or replace it with --restart";
  const auto fingerprint = found.try_fingerprint();
  if (!fingerprint)
    fail(ErrorCode::kInvalidArgument, "{} is there and not of this job; {}", printable_path(path),
         kAdvice);
  const JobFields settings = identity.without_input();
  if (*fingerprint == system_fingerprint(settings))
    fail(ErrorCode::kInvalidArgument, "{} has the results of another input; {}",
         printable_path(path), kAdvice);
  const std::vector<std::string> names = differing_settings(*fingerprint, settings);
  fail(ErrorCode::kInvalidArgument, "{} has the results of a job with another {}; {}",
       printable_path(path),
       names.empty() ? "version of spillway" : fmt::format("{}", fmt::join(names, ", ")), kAdvice);
}

// Returns whether an output is complete but was computed with another placement. A profile or more
// free memory leads to another plan, for which the same requests are not computed again.
bool is_complete_by_another_plan(const std::filesystem::path& output, const BatchInput& input,
                                 BatchIdentity identity, const Session& session) {
  for (const ResultSettings& settings : session.settings_by_other_plans()) {
    identity.settings = settings;
    const ResultLines lines(job_key(identity.fields()), input);
    if (FinishedOutput(output, lines, input).complete()) return true;
  }
  return false;
}

// Returns the path of the results. Throws kInvalidArgument if the output must not replace what is
// there.
std::filesystem::path output_path(const BatchOptions& options) {
  std::error_code error;
  std::filesystem::path path = options.output;
  // Follows links, since the file that a link names is replaced and not the link, even if that file
  // does not exist yet.
  for (int links = 0; links < 40 && std::filesystem::is_symlink(path, error); ++links)
    path = path.parent_path() / std::filesystem::read_symlink(path, error);
  const auto status = std::filesystem::status(path, error);
  SPW_CHECK(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
            kInvalidArgument, "-o {} is not a file; give the name of one", printable_path(path));
  SPW_CHECK(!std::filesystem::equivalent(path, options.input, error), kInvalidArgument,
            "-o {} is the input; give another name", printable_path(path));
  return path;
}

std::filesystem::path with_suffix(std::filesystem::path path, const char* suffix) {
  return path += suffix;
}

std::string format_duration(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

// Shows finished requests, speed, and, once some have ended, the estimated time for the rest.
void show_progress(ProgressBar& bar, const BatchJob& job, const EngineStats& stats,
                   double seconds) {
  const uint64_t ended = job.finished() - job.finished_before();
  std::string detail =
      fmt::format("{} of {} requests, {:.1f} tokens/s", job.finished(), job.requests(),
                  static_cast<double>(stats.generated_tokens) / std::max(seconds, 1e-9));
  if (ended > 0) {
    const double left =
        seconds / static_cast<double>(ended) * static_cast<double>(job.requests() - job.finished());
    detail += fmt::format(", {} left", format_duration(left));
  }
  bar.update(job.finished(), job.requests(), detail);
}

struct BatchSummary {
  uint64_t requests = 0;
  uint64_t failed = 0;
  uint64_t finished_before = 0;
  EngineStats stats;
  double seconds = 0;
  std::map<std::string, uint64_t> ignored_fields = {};  // from BatchJob
  std::optional<Prediction> predicted = {};             // empty if nothing was computed
};

double mean_running(const EngineStats& stats) {
  return stats.steps > 0
             ? static_cast<double>(stats.sequence_steps) / static_cast<double>(stats.steps)
             : 0;
}

void print_summary(const BatchOptions& options, const BatchSummary& summary) {
  const double rate =
      static_cast<double>(summary.stats.generated_tokens) / std::max(summary.seconds, 1e-9);
  if (options.json) {
    print_json(
        {{"requests", summary.requests},
         {"failed", summary.failed},
         {"finished_before", summary.finished_before},
         {"prompt_tokens", summary.stats.prompt_tokens},
         {"generated_tokens", summary.stats.generated_tokens},
         {"draft_proposed", summary.stats.draft_proposed},
         {"draft_accepted", summary.stats.draft_accepted},
         {"preemptions", summary.stats.preemptions},
         {"recomputed_tokens", summary.stats.recomputed_tokens},
         {"predictions_exceeded", summary.stats.predictions_exceeded},
         {"exceeded_preemptions", summary.stats.exceeded_preemptions},
         {"scheduling_s", summary.stats.scheduling_s},
         {"mean_running", mean_running(summary.stats)},
         {"total_s", summary.seconds},
         {"generated_tokens_per_s", rate},
         {"ignored_fields", summary.ignored_fields},
         // Names of the release before, kept for one more (docs/serving.md).
         {"outgrown", summary.stats.predictions_exceeded},
         {"outgrown_preemptions", summary.stats.exceeded_preemptions},
         {"mean_at_work", mean_running(summary.stats)},
         {"predicted", summary.predicted ? predicted_json(*summary.predicted, rate) : nullptr}});
    return;
  }
  std::string text = format_count(static_cast<int64_t>(summary.requests), "request");
  if (summary.failed > 0) text += fmt::format(", {} of them with an error", summary.failed);
  if (summary.finished_before > 0)
    text += fmt::format(", {} of them finished before", summary.finished_before);
  if (summary.stats.generated_tokens > 0)
    text += fmt::format("; {} tokens in {:.1f} s, {:.1f} tokens/s", summary.stats.generated_tokens,
                        summary.seconds, rate);
  if (summary.predicted)
    text += fmt::format(" ({:.1f} predicted for the lengths on average)",
                        summary.predicted->generated_tokens_per_s);
  if (!summary.ignored_fields.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, requests] : summary.ignored_fields)
      names.push_back(fmt::format("{} (in {})", name, requests));
    text += fmt::format("; unknown fields without effect: {}", fmt::join(names, ", "));
  }
  fmt::print(stderr, "{}; results in {}\n", text, printable_path(options.output));
}

// A job that is planned and has not begun.
struct PreparedJob {
  const BatchOptions& options;
  Session& session;  // has a plan, but no loaded weights
  const BatchInput& input;
  const BatchIdentity& identity;
  const ResultLines& lines;
  AnswerLengths* lengths;  // null: no lengths are predicted
};

// Returns what the cost model estimates for the requests with their real lengths.
std::optional<Prediction> predict_job(const Session& session, const EngineStats& stats,
                                      uint64_t requests) {
  const auto count = static_cast<int64_t>(requests);
  if (count == 0 || stats.generated_tokens == 0 || stats.prompt_tokens == 0) return std::nullopt;
  const auto each = [&](int64_t tokens) { return std::max<int64_t>(1, tokens / count); };
  return session.predict_run({{{.count = count,
                                .prompt = each(stats.prompt_tokens),
                                .generate = each(stats.generated_tokens)}}},
                             session.plan().sequences.value_or(1));
}

// Computes the results that the journal lacks.
BatchSummary run_job(const PreparedJob& prepared, BatchJournal& journal) {
  const BatchOptions& options = prepared.options;
  const BatchInput& input = prepared.input;
  Session& session = prepared.session;
  session.report_plan();
  session.load();
  // The runner has room for all planned sequences even if fewer requests are left: that size
  // decides which processor computes attention for long prompts. A store keeps the KV of preempted
  // sequences only if that changes no result.
  ModelRun run(session,
               {.admission = RunOrder::Admission::kByPlan,
                .reuse = RunOrder::Reuse::kWithStore,
                .fits_fewer = true,
                .may_wait = !options.scheduling.admits_whole(),
                .keeps_preempted = !options.not_deterministic,
                .scheduling = options.scheduling.options(),
                .lengths = prepared.lengths,
                .drafts = session.drafts()},
               prepared.identity.context, session.plan().sequences.value_or(1));
  Engine& engine = run.engine();
  const AdmissionPolicy& admission = run.options.admission;
  const int running = admission.max_sequences;
  EngineClient client(engine);
  std::optional<ChatTemplate> chat;
  if (session.tokenizer() != nullptr)
    chat = options.chat_template.try_template(*session.tokenizer());
  const ServedModel model(session.loaded->model.spec.name, session.tokenizer(),
                          {.max_sequence_tokens = engine.max_sequence_tokens(),
                           .vocab_size = session.loaded->model.spec.vocab_size},
                          chat);

  journal.begin(prepared.identity.fields(), kCreated, plan_to_json(session.plan()));
  BatchJob job(input, prepared.lines, journal, model, client,
               {.fingerprint = system_fingerprint(prepared.identity.without_input()),
                .max_outstanding = running + (admission.admit_in_blocks       ? running
                                              : options.scheduling.predicts() ? kChosenFrom
                                                                              : kWaiting)});
  const uint64_t before = journal.size();
  const Stopwatch watch;
  double synced_s = 0;
  {
    ProgressBar bar("batch");
    while (!interrupted() && job.step()) {
      const double now_s = watch.seconds();
      if (now_s - synced_s >= kSyncSeconds) {
        journal.sync();
        synced_s = now_s;
      }
      show_progress(bar, job, client.stats(), now_s);
    }
  }
  journal.sync();
  SPW_CHECK(job.finished() == job.requests(), kCancelled,
            "stopped after {} of {} requests; run the same command again to go on", job.finished(),
            job.requests());
  session.report_drift(run.runner.decoder.take_stats().host_linear);
  return {.requests = job.requests(),
          .failed = job.failed(),
          .finished_before = job.finished_before(),
          .stats = client.stats(),
          .seconds = watch.seconds(),
          .ignored_fields = job.ignored_fields(),
          .predicted = predict_job(session, client.stats(), input.size() - before)};
}

// Copies the results of an existing, incomplete output to the journal; the rest is computed.
void take_over(const FinishedOutput& found, const std::filesystem::path& output,
               const PreparedJob& job, BatchJournal& journal) {
  journal.begin(job.identity.fields(), found.try_created().value_or(kCreated),
                plan_to_json(job.session.plan()));
  found.copy_to(journal);
  journal.sync();
  fmt::print(stderr, "{} is not as it was written; {} of {} results are computed again\n",
             printable_path(output), job.input.size() - journal.size(), job.input.size());
}

// Returns the plan that a job was begun with, for resuming it. A plan that is chosen today, after a
// profile or with more free memory, might change the last bits of results.
std::optional<Plan> try_kept_plan(const std::filesystem::path& journal) {
  const auto text = try_plan_of_journal(journal);
  if (!text) return std::nullopt;
  Plan plan;
  try {
    plan = parse_plan(*text, printable_path(journal) + ": plan");
  } catch (const Error&) {
    return std::nullopt;  // written by another version, which the journal will report
  }
  // The job's own fields decide these.
  plan.compress_weights.reset();
  plan.kv_type.reset();
  plan.attention_topk.reset();
  return plan;
}

int batch(const BatchOptions& options) {
  SPW_CHECK(!options.input.empty(), kInvalidArgument,
            "no requests; give a file of them: spillway batch MODEL INPUT -o OUTPUT");
  SPW_CHECK(!options.output.empty(), kInvalidArgument,
            "no file for the results; give one with -o OUTPUT");
  SPW_CHECK(
      !options.not_deterministic || options.session.kv_store.dir.empty(), kInvalidArgument,
      "with --no-deterministic results would depend on what is found in --kv-dir; leave one of "
      "them out");
  options.scheduling.options();  // throws
  const std::filesystem::path output = output_path(options);
  const BatchInput input(options.input,
                         options.strict_fields ? UnknownFields::kRefuse : UnknownFields::kIgnore);
  SessionOptions asked = session_options(options);
  const std::filesystem::path journal_path = with_suffix(output, ".partial");
  if (!options.restart) asked.placement.kept = try_kept_plan(journal_path);
  Session session(asked, terminal_services());
  const int64_t context = session.context_tokens(options.context);
  const std::unique_ptr<AnswerLengths> lengths = make_answer_lengths(
      options.scheduling.length_predictor, resolve_model(asked.model), context, open_any_encoder);
  session.choose_plan(expected_run(options, input, session, context, lengths.get()));
  const BatchIdentity identity{.input = input.checksum(),
                               .model = model_fingerprint(resolve_model(asked.model)),
                               .context = context,
                               .chat_template = options.chat_template.identity(),
                               .strict_fields = options.strict_fields,
                               .settings = session.settings};
  const JobFields fields = identity.fields();
  const ResultLines lines(job_key(fields), input);
  const PreparedJob prepared{options, session, input, identity, lines, lengths.get()};

  std::error_code error;  // ignored: if the output cannot be looked at, opening it will say why
  // If there is a journal, the job has begun already, with --restart, and will replace the output.
  std::optional<FinishedOutput> found;
  if (!options.restart && std::filesystem::exists(output, error) &&
      !std::filesystem::exists(journal_path, error)) {
    found.emplace(output, lines, input);
    if (found->complete() ||
        (!found->of_job() && is_complete_by_another_plan(output, input, identity, session))) {
      fmt::print(stderr, "{} has all results of this job; --restart computes them again\n",
                 printable_path(output));
      return 0;
    }
    if (!found->of_job()) refuse_output(output, *found, identity);
  }
  BatchJournal journal(journal_path, options.restart);
  journal.require_same_job(fields);
  if (found && found->sound() > 0) take_over(*found, output, prepared, journal);
  BatchSummary summary{.requests = input.size(),
                       .failed = journal.failed(),
                       .finished_before = journal.size(),
                       .stats = {},
                       .seconds = 0};
  if (journal.size() < input.size()) summary = run_job(prepared, journal);
  journal.write_output(output);
  journal.remove();
  print_summary(options, summary);
  return 0;
}

}  // namespace

void add_batch_command(Command& app) {
  auto* command = app.add_subcommand(
      "batch", "answer a file of OpenAI batch requests; continues where it was after a kill");
  auto options = std::make_shared<BatchOptions>();
  add_session_flags(*command, options->session);
  add_kv_store_flags(*command, options->session.kv_store);
  add_draft_flag(*command, options->session.drafts);
  command
      ->add_option("INPUT", options->input,
                   "requests, one a line: {\"custom_id\", \"method\", \"url\", \"body\"}")
      ->show_required()
      ->basic();
  command->add_option("-o,--output", options->output, "results, in the order of the requests")
      ->show_required()
      ->group(HelpGroup::kOutput)
      ->basic();
  add_concurrency_flags(*command, options->context, options->max_sequences, kSequencesOnCpu,
                        kSequencesOnGpu);
  add_kv_expansion_flag(*command, options->session.placement);
  add_scheduling_flags(*command, options->scheduling, "first");
  options->chat_template.add_to(*command);
  command
      ->add_flag("--no-deterministic", options->not_deterministic,
                 "faster kernels, whose results depend on the batch: a job that was killed may "
                 "then end differently; without it batch is --deterministic")
      ->excludes(command->get_option("--deterministic"))
      ->group(HelpGroup::kSpeed);
  command
      ->add_flag("--strict-fields", options->strict_fields,
                 "a request with unknown fields gets an error; otherwise they have no effect, and "
                 "the summary names them")
      ->group(HelpGroup::kRequests);
  command
      ->add_flag("--restart", options->restart,
                 "forget what an earlier run of this job finished, and replace its results")
      ->group(HelpGroup::kOutput)
      ->basic();
  command->add_flag("--json", options->json, "print the summary as JSON")
      ->group(HelpGroup::kOutput)
      ->basic();
  command->example("spillway batch smollm2 requests.jsonl -o results.jsonl");
  command->example("jq -r '.response.body.choices[0].message.content' results.jsonl");
  command->note(
      "Results are kept in OUTPUT.partial as they finish and become OUTPUT at the end. A job that "
      "was stopped or killed goes on when the same command runs again; OUTPUT is then the same, "
      "byte for byte. An OUTPUT that was cut short or edited since is completed in the same way. "
      "A request that cannot be answered gets a line that says why.");
  command->note(
      "A request (on one line):\n"
      "  {\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\",\n"
      "   \"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"Name a river.\"}],\n"
      "            \"max_tokens\": 32}}");
  command->action([options] { return batch(*options); });
}

}  // namespace spillway
