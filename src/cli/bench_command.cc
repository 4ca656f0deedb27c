// SPDX-License-Identifier: Apache-2.0
// spillway bench: measures prefill and decode, the bytes moved meanwhile, and the stalls.
#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/plain_numbers.h"
#include "base/printable.h"
#include "cli/attention_report.h"
#include "cli/bench_lengths.h"
#include "cli/bench_report.h"
#include "cli/bench_run.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/draft_flags.h"
#include "cli/json_output.h"
#include "cli/predicted_json.h"
#include "cli/session_flags.h"
#include "cli/terminal.h"
#include "cli/terminal_services.h"
#include "cli/value_check.h"
#include "engine/model_run.h"
#include "engine/session.h"
#include "storage/file_writer.h"

namespace spillway {
namespace {

using nlohmann::json;

// --batch auto searches for the fastest number of sequences up to kMostSequences. The workload then
// has kManyRequests requests, which batch blocks of any usual size divide evenly.
constexpr auto kAutoBatch = "auto";
constexpr int64_t kMostSequences = 1024, kManyRequests = 3072;

// FlexGen's workload: prompts of one length, all of which are there from the beginning.
struct WorkloadSize {
  int prompt_len = 512;
  int gen_len = 32;
  int batch = 1;
  int steps = 0;  // most decode steps; 0: gen_len - 1

  // The first token comes from prefill, so decode makes one token less.
  int all_decode_steps() const { return gen_len - 1; }
  int decode_steps() const {
    return steps > 0 ? std::min(steps, all_decode_steps()) : all_decode_steps();
  }
};

struct BenchOptions {
  SessionOptions session;
  WorkloadSize size;
  // A number, or kAutoBatch for the planner's choice. Empty: the value in the plan file, or 1.
  std::string batch = {};
  std::optional<std::string> lengths;  // a file of lengths; empty: all requests are alike
  size_t requests = 0;                 // how many requests of that file; 0: all
  int repeat = 3;
  int warm_up = 0;
  std::string timeline = {};  // file to draw a timeline into
  bool json = false;
};

json report(const BenchOptions& options, Session& session, const BenchRun& run) {
  const WorkloadSize& size = options.size;
  const double batch = size.batch, prompt = size.prompt_len, generated = size.gen_len;
  const int steps = size.decode_steps();
  // Assumes that the decode steps that were left out take as long as the others.
  const double decode_s =
      steps > 0 ? run.decode.seconds * size.all_decode_steps() / steps : run.decode.seconds;
  const double prefill_s = run.prefill.seconds;
  json out = session_json(options.session, session);
  out.update({{"batch", size.batch},
              {"prompt_len", size.prompt_len},
              {"gen_len", size.gen_len},
              {"steps", steps},
              {"repeat", options.repeat},
              {"warm_up", options.warm_up},
              {"prefill_s", prefill_s},
              {"decode_s", decode_s},
              {"first_token_s", mean_and_max(run.first_token_s)},
              {"prefill_tokens_per_s", batch * prompt / prefill_s},
              {"generated_tokens_per_s", batch * generated / (prefill_s + decode_s)},
              {"total_tokens_per_s", batch * (prompt + generated) / (prefill_s + decode_s)},
              {"draft_proposed", run.engine.draft_proposed},
              {"draft_accepted", run.engine.draft_accepted},
              {"predicted", nullptr},
              {"prefill", phase_json(run.prefill)}});
  if (steps > 0) {
    const auto weights = static_cast<double>(session.loaded->model.weight_bytes());
    const auto decode_steps = static_cast<double>(run.decode.steps);
    out["decode_tokens_per_s"] = batch * size.all_decode_steps() / decode_s;
    out["decode_weight_gb_per_s"] = weights * decode_steps / run.decode.seconds / 1e9;
    out["decode"] = phase_json(run.decode);
  } else {
    out["decode_tokens_per_s"] = nullptr;
  }
  AttentionTraffic traffic = run.prefill.moved.attention;
  traffic += run.decode.moved.attention;
  report_attention(out, session.settings.attention_topk, traffic);
  return out;
}

void print_report(const json& out) {
  print_now(fmt::format("{} on {}, {}; batch {}, prompt {}, generated {}; median of {}\n",
                        out["model"].get<std::string>(), out["device"].get<std::string>(),
                        format_count(out["threads"].get<int>(), "thread"), out["batch"].get<int>(),
                        out["prompt_len"].get<int>(), out["gen_len"].get<int>(),
                        out["repeat"].get<int>()));
  print_now(fmt::format("prefill   {:8.1f} tokens/s  ({:.3f} s)\n",
                        out["prefill_tokens_per_s"].get<double>(), out["prefill_s"].get<double>()));
  if (!out["decode_tokens_per_s"].is_null()) {
    print_now(fmt::format("decode    {:8.1f} tokens/s  ({:.3f} s, weights read at {:.1f} GB/s)\n",
                          out["decode_tokens_per_s"].get<double>(), out["decode_s"].get<double>(),
                          out["decode_weight_gb_per_s"].get<double>()));
  }
  print_now(fmt::format("generated {:8.1f} tokens/s over prefill and decode\n",
                        out["generated_tokens_per_s"].get<double>()));
  if (const auto proposed = out["draft_proposed"].get<int64_t>(); proposed > 0)
    print_now(fmt::format("drafts    {} proposed, {} accepted\n", proposed,
                          out["draft_accepted"].get<int64_t>()));
  const json& predicted = out["predicted"];
  print_now(fmt::format(
      "predicted {:8.1f} tokens/s, prompts {:.3f} s, decode {:.3f} s; bound by {}\n",
      predicted["generated_tokens_per_s"].get<double>(), predicted["prefill_s"].get<double>(),
      predicted["decode_s"].get<double>(), predicted["bottleneck"].get<std::string>()));
  print_phase("prefill", out["prefill"]);
  if (out.contains("decode")) print_phase("decode", out["decode"]);
  if (out.contains("timeline")) print_timeline(out["timeline"]);
  print_tiers_and_tuning(out);
}

json bench_plan(const BenchOptions& options, Session& session) {
  const WorkloadSize& size = options.size;
  ModelSpec& spec = session.loaded->model.spec;
  if (has_any_context(options.session.model, spec))
    spec.max_context = std::max(spec.max_context, int64_t{size.prompt_len} + size.gen_len);
  SPW_CHECK(int64_t{size.prompt_len} + size.gen_len <= spec.max_context, kInvalidArgument,
            "--prompt-len {} and --gen-len {} exceed the model's context of {} tokens",
            size.prompt_len, size.gen_len, spec.max_context);
  const std::vector<RequestLengths> requests(
      static_cast<size_t>(size.batch),
      {.prompt = size.prompt_len, .answer = size.decode_steps() + 1});
  // Opens the file now, so that a file that cannot be written is reported before the long run.
  std::optional<FileWriter> drawing;
  if (!options.timeline.empty()) drawing.emplace(options.timeline);
  ModelRun model(session,
                 {.admission = RunOrder::Admission::kWholeBlocks, .drafts = session.drafts()},
                 int64_t{size.prompt_len} + size.gen_len, size.batch);
  const BenchOrder order{.engine = model.options,
                         .requests = requests,
                         .warm_up = options.warm_up,
                         .repeat = options.repeat};
  const BenchRun run = run_median(model.runner, order);
  session.report_drift(run.decode.moved.host_linear);
  json out = report(options, session, run);
  out["memory"] = memory_json(session, int64_t{size.prompt_len} + size.gen_len,
                              model.options.admission.max_sequences);
  out["predicted"] = predicted_json(
      session.predict_run(
          {{{.count = size.batch, .prompt = size.prompt_len, .generate = size.gen_len}}},
          size.batch),
      out["generated_tokens_per_s"].get<double>());
  if (drawing) {
    Timeline timeline(*session.device);
    const BenchRun drawn = run_drawn(model.runner, order, timeline);
    drawing->write(timeline.chrome_trace());
    drawing->commit();
    out["timeline"] = {{"file", options.timeline}, {"phases", timeline_json(timeline, drawn)}};
  }
  return out;
}

int parse_batch(const std::string& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  SPW_CHECK(
      error == std::errc() && end == text.data() + text.size() && number >= 1 && number <= 1 << 24,
      kInvalidArgument, "--batch is '{}'; give a number from 1, or auto", printable(text));
  return number;
}

int bench(BenchOptions options) {
  const bool auto_batch = options.batch == kAutoBatch;
  if (!auto_batch && !options.batch.empty()) options.size.batch = parse_batch(options.batch);
  const PlacementOptions& placement = options.session.placement;
  SPW_CHECK(
      options.session.drafts.kind != DraftKind::kDrawn || try_dummy_name(options.session.model),
      kInvalidArgument,
      "--draft-acceptance makes up which drafts are right, and is for dummy models; give "
      "dummy:NAME, or --draft lookup");
  SPW_CHECK(!auto_batch || !placement.try_explicit_plan(), kInvalidArgument,
            "--batch auto is for the planner to find; with a plan, give a number");
  SPW_CHECK(options.timeline.empty() || placement.plans.size() <= 1, kInvalidArgument,
            "--timeline draws one plan; give one --plan");
  std::vector<RequestLengths> lengths;
  ExpectedRun run{.tokens = int64_t{options.size.prompt_len} + options.size.gen_len,
                  .sequences = options.size.batch,
                  .prompt = options.size.prompt_len,
                  .generated = options.size.gen_len,
                  .sequences_option = "--batch"};
  if (options.lengths) {
    lengths = read_request_lengths(*options.lengths, options.requests);
    run.tokens = std::ranges::max(lengths, {}, &RequestLengths::total).total();
    const TokenCounts all = count_tokens(lengths);
    run.requests = static_cast<int64_t>(lengths.size());
    run.prompt = std::max<int64_t>(1, all.prompt / run.requests);
    run.generated = std::max<int64_t>(1, all.answer / run.requests);
    // Some requests may be too long for the model, so a shorter run is accepted.
    run.least_tokens = std::ranges::min(lengths, {}, &RequestLengths::total).total();
    run.least_sequences = 1;
  }
  const size_t plans = std::max<size_t>(1, options.session.placement.plans.size());
  if (auto_batch) {
    run.sequences = kMostSequences;
    if (lengths.empty()) run.requests = kManyRequests;
    run.finds_sequences = true;
    run.least_sequences = 1;
  }
  // All plans share one session: a weight is made or read once, and then only changes its home.
  Session session(options.session, terminal_services());
  for (size_t i = 0; i < plans; ++i) {
    if (options.batch.empty() && i < placement.plans.size()) {
      options.size.batch = read_plan(placement.plans[i]).sequences.value_or(1);
      run.sequences = options.size.batch;
    }
    session.choose_plan(run, i);
    if (auto_batch || !lengths.empty())
      options.size.batch = session.plan().sequences.value_or(options.size.batch);
    session.report_plan();
    session.load();
    const json out = lengths.empty() ? bench_plan(options, session)
                                     : bench_lengths(options.session, session,
                                                     {.lengths = lengths,
                                                      .batch = options.size.batch,
                                                      .warm_up = options.warm_up,
                                                      .repeat = options.repeat});
    if (options.json) {
      print_json(out);
      continue;
    }
    if (plans > 1) {
      print_now(fmt::format("{}plan {}\n", i == 0 ? "" : "\n",
                            printable_path(options.session.placement.plans[i])));
    }
    if (lengths.empty()) {
      print_report(out);
    } else {
      print_lengths_report(out);
    }
  }
  return 0;
}

}  // namespace

void add_bench_command(Command& app) {
  auto* command =
      app.add_subcommand("bench", "measure prefill and decode speed on synthetic prompts");
  auto options = std::make_shared<BenchOptions>();
  add_session_flags(*command, options->session, /*several_plans=*/true);
  add_swapped_layers_flag(*command, options->session.placement);
  add_drawn_draft_flags(*command, options->session.drafts);
  const auto positive = in_range(1, 1 << 24);
  auto* const prompt_len =
      command->add_option("--prompt-len", options->size.prompt_len, "tokens in each prompt")
          ->check(positive)
          ->group(HelpGroup::kWorkload)
          ->basic();
  auto* const gen_len = command
                            ->add_option("--gen-len", options->size.gen_len,
                                         "tokens generated for each; the first comes from prefill")
                            ->check(positive)
                            ->group(HelpGroup::kWorkload)
                            ->basic();
  command
      ->add_option("--batch", options->batch,
                   "sequences that run concurrently; auto: as many as are estimated to be fastest")
      ->placeholder("N|auto")
      ->default_text("1, or as the plan file says")
      ->group(HelpGroup::kWorkload)
      ->basic();
  command->add_option("--repeat", options->repeat, "runs; the median one is reported as a whole")
      ->check(positive)
      ->group(HelpGroup::kWorkload);
  command
      ->add_option("--warm-up", options->warm_up,
                   "runs of a few steps before those, which do not count")
      ->check(in_range(0, 1 << 24))
      ->group(HelpGroup::kWorkload);
  auto* const steps =
      command
          ->add_option("--steps", options->size.steps,
                       "decode only this many steps of each run, and take the others to be like "
                       "them")
          ->check(positive)
          ->default_text("all")
          ->group(HelpGroup::kWorkload);
  auto* const lengths =
      command
          ->add_option(
              "--lengths", options->lengths,
              "requests of these lengths instead: a file with the tokens of a prompt and of its "
              "answer on each line, or a CSV with columns ContextTokens and GeneratedTokens; "
              "those beyond the model's context are left out")
          ->excludes(prompt_len)
          ->excludes(gen_len)
          ->excludes(steps)
          ->placeholder("FILE")
          ->group(HelpGroup::kWorkload)
          ->basic();
  command->add_option("--requests", options->requests, "only the first N requests of --lengths")
      ->check(positive)
      ->needs(lengths)
      ->default_text("all")
      ->group(HelpGroup::kWorkload);
  command
      ->add_option("--timeline", options->timeline,
                   "draw one more run with a few steps into this file, which Perfetto opens, and "
                   "say how busy GPU, CPU and bus were")
      ->excludes(lengths)
      ->placeholder("FILE")
      ->group(HelpGroup::kOutput);
  command
      ->add_flag("--no-overlap", options->session.placement.no_overlap,
                 "one thing after the other, each timed")
      ->group(HelpGroup::kPlacement);
  command->add_flag("--json", options->json, "print one JSON object a plan")
      ->group(HelpGroup::kOutput)
      ->basic();
  command->example("spillway bench smollm2");
  command->example("spillway bench dummy:tinyllama-1.1b:q4_0 --batch 8");
  command->example(
      "spillway bench dummy:opt-30b --gpu-memory 16GiB --host-memory 100GiB \\\n--batch 64");
  command->example(
      "spillway bench dummy:opt-1.3b --lengths trace.csv --requests 500 \\\n"
      "--batch 32 --schedule diagonal");
  command->note(
      "Requests go through the engine, as those of run and batch: all are there from the "
      "beginning, go on past end tokens, and their prompts are computed before the first of them "
      "goes on. Prefill lasts until all have their first token. Where the plan has batch blocks "
      "of fewer sequences than --batch (row by row, --micro-batches), these run one after the "
      "other, and both phases are sums over them.");
  command->note(
      "generated tokens/s = generated / (prefill + decode time), the metric of the FlexGen paper.");
  command->note(
      "With --lengths, --batch requests run concurrently, and each that ends is replaced in the "
      "next step (--schedule continuous); zigzag begins --batch requests together and the next "
      "ones when all have ended; diagonal begins a few a step; row runs --micro-batch requests "
      "together, as zigzag. Padded tokens are those that an engine computes which pads every "
      "request of a batch block.");
  command->action([options] { return bench(*options); });
}

}  // namespace spillway
