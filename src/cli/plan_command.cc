// SPDX-License-Identifier: Apache-2.0
// spillway plan: finds where a model would go and how fast it would be, before a byte is loaded,
// for this machine or for one that is described by a file.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/json_output.h"
#include "cli/local_devices.h"
#include "cli/plan_frontier.h"
#include "cli/plan_report.h"
#include "cli/predicted_json.h"
#include "cli/request_lengths.h"
#include "cli/session_flags.h"
#include "cli/terminal.h"
#include "cli/value_check.h"
#include "engine/planner.h"
#include "plan/step_trace.h"
#include "plan/weight_homes.h"

namespace spillway {
namespace {

using nlohmann::json;

struct PlanOptions {
  PlanQuestion question;
  std::string hardware, device = "auto", output, trace, frontier;
  std::optional<std::string> lengths;  // a file of requests; empty: all are alike
  int64_t prompt = 512, generate = 32;
  int64_t requests = 0;  // 0: one request, or all of the file
  bool no_advice = false, json = false;
};

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  SPW_CHECK(file.good(), kIo, "{}: cannot be written", printable(path));
}

// Shows the progress of long searches and ends them on Ctrl-C.
class SearchProgress {
 public:
  std::function<void(double)> on_progress() {
    return [this](double share) {
      SPW_CHECK(!interrupted(), kCancelled, "interrupted while planning");
      if (bar_) bar_->update(static_cast<uint64_t>(share * 100), 100, "");
    };
  }
  // Clears the progress line.
  void end() { bar_.reset(); }

 private:
  std::optional<ProgressBar> bar_{std::in_place, "planning"};
};

int show_frontier(const PlanOptions& options, const Planner& planner, SearchProgress& progress) {
  const std::vector<FrontierPoint> points = find_frontier(planner.request());
  progress.end();
  if (points.empty()) {
    std::vector<std::string> unused;
    planner.answer(unused);  // throws an error that says what would make it fit
    fail(ErrorCode::kOutOfMemory, "no plan fits that the frontier could show");
  }
  write(options.frontier,
        frontier_svg(points, fmt::format("{} on {}: {}", planner.model.spec.name,
                                         planner.hardware.name, describe_workload(planner))));
  json all = json::array();
  if (!options.json)
    print_now(fmt::format("  at once   latency  first tokens  tokens/s   weights ({}host, disk)\n",
                          planner.hardware.has_device() ? "GPU, " : ""));
  for (const FrontierPoint& point : points) {
    const Prediction& p = point.found.predicted;
    const bool has_device = planner.hardware.has_device();
    const TierShares w = placed_shares(planner.model, planner.homes(point.found.plan), has_device);
    all.push_back({{"sequences", point.found.size.sequences},
                   {"best", point.best},
                   {"predicted", predicted_json(p)},
                   {"plan", json::parse(plan_to_json(planner.complete(point.found)))}});
    if (options.json) continue;
    print_now(fmt::format(
        "{} {:>7} {:>7.3g} s  {:>10.3g} s  {:>8.4g}   {}{:.0f}, {:.0f}%\n", point.best ? ' ' : '-',
        point.found.size.sequences, p.latency_s, p.first_token_s, p.generated_tokens_per_s,
        has_device ? fmt::format("{:.0f}, ", w.device * 100) : "", w.host * 100, w.disk * 100));
  }
  if (options.json) print_json({{"machine", planner.hardware.name}, {"frontier", all}}, 2);
  return 0;
}

// Fills in values from the plan file that no option sets.
PlanQuestion with_plan_file(PlanQuestion question) {
  if (question.placement.plans.empty()) return question;
  const Plan plan = read_plan(question.placement.plans[0]);
  question.compute.take_from(plan);
  question.placement.take_from(plan);
  question.deterministic = plan.deterministic.value_or(false);
  question.lookup_drafts = plan.lookup_drafts.value_or(false);
  if (plan.sequences && question.max_concurrent == 0) question.max_concurrent = *plan.sequences;
  return question;
}

Workload workload_asked(const PlanOptions& options) {
  if (options.lengths) {
    return workload_of(
        read_request_lengths(*options.lengths, static_cast<size_t>(options.requests)));
  }
  return {{{std::max<int64_t>(1, options.requests), options.prompt, options.generate}}};
}

// True if only one request is planned because the user gave no number; more may be wanted.
bool asks_for_one(const PlanOptions& options) {
  return options.requests == 0 && !options.lengths && options.question.objective == "throughput";
}

int plan(PlanOptions options) {
  SPW_CHECK(options.prompt >= 1 && options.generate >= 1, kInvalidArgument,
            "--prompt-len and --gen-len are at least 1");
  options.question.workload = workload_asked(options);
  options.question.mixed_lengths = options.lengths.has_value();
  options.question.compute.checked_topk();
  SearchProgress progress;
  options.question.on_progress = progress.on_progress();
  const ChosenHardware machine = choose_hardware(options.hardware, options.device, local_devices());
  const PlanQuestion question = with_plan_file(options.question);
  const Planner planner(question, machine);
  if (!options.frontier.empty()) return show_frontier(options, planner, progress);
  PlanReport report;
  report.best = planner.answer(report.warnings);
  const FoundPlan& best = report.best;
  if (!planner.by_hand() && asks_for_one(options))
    report.as_many_as_pay = try_as_many_as_pay(planner.request());
  if (!planner.by_hand() && !options.no_advice) report.suggestions = planner.suggestions(best);
  progress.end();
  planner.warn(best, report.warnings);
  if (!options.output.empty()) write(options.output, plan_to_json(planner.complete(best)) + "\n");
  if (!options.trace.empty()) {
    write(options.trace, trace_of_steps(planner.hardware, planner.model, planner.homes(best.plan),
                                        best.plan, best.needs.layout,
                                        {.sequences = best.size.sequences,
                                         .tokens_each = 1,
                                         .keys = planner.workload.decode_keys()}));
  }
  if (options.json) {
    print_json(plan_report_json(planner, report), 2);
  } else {
    print_plan(planner, report);
  }
  return 0;
}

}  // namespace

void add_plan_command(Command& app) {
  auto* command = app.add_subcommand(
      "plan", "say where a model would go and how fast it would be, before anything is loaded");
  auto options = std::make_shared<PlanOptions>();
  command
      ->add_option("-m,--model,MODEL", options->question.model,
                   "GGUF file, Hugging Face folder, smollm2, or dummy:NAME")
      ->required()
      ->basic();
  command
      ->add_option(
          "--hardware", options->hardware,
          fmt::format("a machine's file, or one of {}", fmt::join(shipped_hardware(), ", ")))
      ->placeholder("NAME|FILE")
      ->default_text("this one, as spillway profile measured it, or the nearest of them")
      ->group(HelpGroup::kMemory)
      ->basic();
  command
      ->add_option("--device", options->device,
                   "what computes there: auto (its GPU if it has one), cpu (the machine without "
                   "its GPU), cuda or cuda:N")
      ->placeholder("NAME")
      ->group(HelpGroup::kMemory);
  command->add_option("--gpu-memory", options->question.gpu_memory, "most GPU memory to use")
      ->placeholder("BYTES")
      ->default_text("what the machine has")
      ->group(HelpGroup::kMemory)
      ->basic();
  command->add_option("--host-memory", options->question.host_memory, "most host memory to use")
      ->placeholder("BYTES")
      ->default_text("nine tenths of what the machine has")
      ->group(HelpGroup::kMemory)
      ->basic();
  command->add_option("--disk-memory", options->question.disk_memory, "most disk space to use")
      ->placeholder("BYTES")
      ->default_text("0")
      ->group(HelpGroup::kMemory)
      ->basic();
  auto* const prompt = command->add_option("--prompt-len", options->prompt, "tokens of a prompt")
                           ->group(HelpGroup::kWorkload)
                           ->basic();
  auto* const generate =
      command->add_option("--gen-len", options->generate, "tokens to generate for each")
          ->group(HelpGroup::kWorkload)
          ->basic();
  command
      ->add_option("--lengths", options->lengths,
                   "requests of these lengths instead: a file with the tokens of a prompt and of "
                   "its answer in each line, as for bench")
      ->excludes(prompt)
      ->excludes(generate)
      ->placeholder("FILE")
      ->group(HelpGroup::kWorkload);
  command
      ->add_option("--requests", options->requests,
                   "requests; with --lengths, the first N of the file")
      ->check(positive_number())
      ->default_text("1, and what as many as pay together would do; with --lengths all")
      ->group(HelpGroup::kWorkload)
      ->basic();
  command
      ->add_option("--batch", options->question.max_concurrent,
                   "most sequences that run concurrently; 0 = any number")
      ->group(HelpGroup::kWorkload);
  add_compress_weights_flag(*command, options->question.compute);
  add_compute_flags(*command, options->question.compute);
  command->add_option("--objective", options->question.objective, "what to make as good as can be")
      ->placeholder("throughput|latency")
      ->group(HelpGroup::kWorkload);
  command
      ->add_option("--max-latency", options->question.max_latency,
                   "longest time until the last token of a batch block")
      ->placeholder("SECONDS")
      ->default_text("no limit")
      ->group(HelpGroup::kWorkload);
  command->add_option("--max-ttft", options->question.max_ttft, "longest time until first tokens")
      ->placeholder("SECONDS")
      ->default_text("no limit")
      ->group(HelpGroup::kWorkload);
  command
      ->add_option("--trace", options->trace,
                   "write a simulated step as a Chrome trace, which Perfetto opens")
      ->placeholder("FILE")
      ->group(HelpGroup::kOutput);
  command
      ->add_option("--frontier", options->frontier,
                   "instead: latency against throughput for growing numbers of concurrent "
                   "sequences, as a table, and as a drawing (SVG) in this file")
      ->placeholder("FILE")
      ->group(HelpGroup::kOutput);
  command
      ->add_option("-o,--output", options->output, "write the plan, for --plan of other commands")
      ->placeholder("FILE")
      ->group(HelpGroup::kOutput)
      ->basic();
  add_plan_flags(*command, options->question.placement, false);
  add_swapped_layers_flag(*command, options->question.placement);
  command
      ->add_flag("--no-overlap", options->question.placement.no_overlap,
                 "one thing after the other")
      ->group(HelpGroup::kPlacement);
  command->add_flag("--no-advice", options->no_advice, "do not look for what would help")
      ->group(HelpGroup::kOutput);
  command->add_flag("--json", options->json, "print JSON")->group(HelpGroup::kOutput)->basic();
  command->example("spillway plan model.gguf --requests 64");
  command->example(
      "spillway plan dummy:opt-175b --hardware t4 --requests 256 \\\n--disk-memory 1500GiB");
  command->example("spillway plan dummy:opt-30b --hardware h200 --gpu-memory 16GiB -o plan.json");
  command->example(
      "spillway plan dummy:opt-30b --hardware t4 --requests 144 \\\n"
      "--weights 10,90,0 --kv 0,100,0 --micro-batch 48");
  command->action([options, prompt] {
    options->question.usual_prompt = prompt->count() == 0;
    return plan(*options);
  });
}

}  // namespace spillway
