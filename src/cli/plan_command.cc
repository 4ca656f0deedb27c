// SPDX-License-Identifier: Apache-2.0
// spillway plan: what would go where and how fast it would be, before a byte is loaded; on this
// machine or on one that is not here.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/printable.h"
#include "cli/commands.h"
#include "cli/hardware_choice.h"
#include "cli/json_output.h"
#include "cli/model_catalog.h"
#include "cli/model_fingerprint.h"
#include "cli/placement_options.h"
#include "cli/plan_frontier.h"
#include "cli/predicted_json.h"
#include "cli/request_lengths.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "engine/loaded_model.h"
#include "plan/machine_traits.h"
#include "plan/search.h"
#include "plan/step_trace.h"
#include "serve/checksum.h"
#include "storage/model_files.h"

namespace spillway {
namespace {

using nlohmann::json;

struct PlanOptions {
  std::string model, hardware, gpu_memory, host_memory, disk_memory, kv_type = "auto";
  std::string objective = "throughput", output, trace, frontier;
  std::optional<std::string> lengths;  // a file of requests; else all are alike
  // Requests 0: one, or all of the file.
  int64_t prompt = 512, generate = 32, requests = 0, most_at_once = 0;
  int chunk = 0;
  float attention_topk = 0;
  double max_latency = 0, max_ttft = 0;
  bool compress_weights = false, no_advice = false, json = false;
  PlacementOptions placement;  // without memories
  Workload workload = {};      // that these ask for
};

Model model_of(const PlanOptions& options) {
  const std::string path = resolve_model(options.model);
  const auto dummy = try_dummy_name(path);
  Model model = dummy ? describe_dummy_model(*dummy) : describe_model(open_model(path));
  widen_vectors(model);
  if (options.compress_weights) compress_matrices(model);
  return model;
}

struct Planner {
  Planner(const PlanOptions& options_, const ChosenHardware& machine_)
      : options(options_), model(model_of(options_)), machine(machine_) {
    const bool apart = hardware.has_device();
    const auto memory = [](const std::string& text, const char* option, uint64_t otherwise) {
      return text.empty() ? otherwise : parse_memory(text, option);
    };
    budgets.device =
        apart ? memory(options.gpu_memory, "--gpu-memory", hardware.gpu->memory_bytes) : 0;
    budgets.host =
        memory(options.host_memory, "--host-memory", hardware.host.memory_bytes / 10 * 9);
    budgets.disk = memory(options.disk_memory, "--disk-memory", 0);
    budgets.host_is_limited = !options.host_memory.empty();
    traits = traits_of_machine(hardware, budgets);
    size.kv_type = options.kv_type == "auto" ? default_kv_type(model) : kv_type_of(options.kv_type);
    size.micro_tokens = options.chunk > 0 ? options.chunk : apart || hardware.gpu ? 2048 : 512;
    workload = options.workload;
    if (options.lengths && !has_any_context(options.model, model.spec)) leave_out_long_requests();
  }
  void leave_out_long_requests() {
    const int64_t before = workload.requests();
    std::erase_if(workload.groups, [&](const RequestGroup& group) {
      return group.prompt + group.generate > model.spec.max_context;
    });
    left_out = before - workload.requests();
    SPW_CHECK(workload.requests() > 0, kInvalidArgument,
              "all {} requests exceed the model's context of {} tokens", before,
              model.spec.max_context);
  }
  static KvType kv_type_of(const std::string& text) {
    const auto type = try_kv_type_from_name(text);
    SPW_CHECK(type, kInvalidArgument, "--kv-type is '{}'; give f32, f16, bf16, int8, int4 or auto",
              printable(text));
    return *type;
  }
  SearchRequest request() const {
    SearchRequest asked{.hardware = hardware,
                        .model = model,
                        .traits = traits,
                        .workload = workload,
                        .budgets = budgets,
                        .size = size,
                        .attention_topk = options.attention_topk,
                        .most_sequences = options.most_at_once};
    if (options.chunk > 0) asked.smallest_chunk = options.chunk;
    SPW_CHECK(options.objective == "throughput" || options.objective == "latency", kInvalidArgument,
              "--objective is '{}'; give throughput or latency", printable(options.objective));
    if (options.objective == "latency") asked.objective = Objective::kLatency;
    if (options.max_latency > 0) asked.max_latency_s = options.max_latency;
    if (options.max_ttft > 0) asked.max_first_token_s = options.max_ttft;
    asked.given = options.placement.given();
    return asked;
  }
  // The smallest of a budget with which something is found, to a sixteenth of a GiB; nothing where
  // there is none up to 64 times as much.
  std::optional<uint64_t> smallest(uint64_t Budgets::*budget) const {
    SearchRequest trial = request();
    const auto works = [&](uint64_t bytes) {
      trial.budgets.*budget = bytes;
      DeviceTraits traits_there = traits_of_machine(hardware, trial.budgets);
      const SearchRequest there{.hardware = hardware,
                                .model = model,
                                .traits = traits_there,
                                .workload = workload,
                                .budgets = trial.budgets,
                                .size = size,
                                .smallest_chunk = trial.smallest_chunk,
                                .most_sequences = 1,
                                .given = trial.given};
      return !search_plans(there).empty();
    };
    constexpr uint64_t kGrain = uint64_t{64} << 20;
    uint64_t high = std::max(budgets.*budget, kGrain);
    const uint64_t most = 64 * std::max(high, uint64_t{1} << 30);
    while (!works(high)) {
      if (high >= most) return std::nullopt;
      high *= 2;
    }
    uint64_t low = 0;
    while (high - low > kGrain) {
      const uint64_t middle = low + (high - low) / 2;
      (works(middle) ? high : low) = middle;
    }
    return (high + kGrain - 1) / kGrain * kGrain;
  }

  // With all that a run needs to be this one.
  Plan complete(const FoundPlan& found) const {
    Plan plan = found.plan;
    if (plan.attention == AttentionPlace::kAuto && plan.kv.host > 0 && hardware.has_device())
      plan.cpu_attention = found.predicted.cpu_attention;
    plan.compress_weights = options.compress_weights;
    plan.kv_type = found.size.kv_type;
    plan.attention_topk = options.attention_topk;
    plan.context = found.size.tokens;
    plan.chunk = found.size.micro_tokens;
    plan.sequences = static_cast<int>(found.size.sequences);
    plan.made_for = {model_fingerprint(resolve_model(options.model)),
                     checksum128(hardware_to_json(hardware))};
    return plan;
  }

  const PlanOptions& options;
  Model model;
  const ChosenHardware& machine;
  const Hardware& hardware = machine.hardware;
  Budgets budgets;
  DeviceTraits traits;
  Workload workload;
  int64_t left_out = 0;  // requests beyond the model's context
  RunSize size;
};

// A plan that was given, by its price on this machine; where it does not fit, on one that has as
// much of the memory that is too small as it takes. `warnings` say of which.
FoundPlan priced(const Planner& planner, const Plan& plan, std::vector<std::string>& warnings) {
  const bool apart = planner.hardware.has_device();
  FoundPlan found{.plan = plan, .size = planner.size};
  const int64_t asked = planner.options.most_at_once, requests = planner.workload.requests();
  found.size.sequences = asked > 0 ? std::min(asked, requests) : requests;
  found.size.tokens = planner.workload.longest();
  found.plan.attention_topk = planner.options.attention_topk;
  Budgets budgets = planner.budgets;
  const auto settle = [&] {
    const DeviceTraits traits = traits_of_machine(planner.hardware, budgets);
    found.needs = footprint(planner.model, plan, found.size, traits);
    return fits(found.needs, traits, budgets);
  };
  const auto grow = [&](uint64_t& budget, uint64_t needed, const char* memory) {
    if (needed <= budget) return;
    warnings.push_back(fmt::format("the plan does not fit: it needs {} of {}, and there are {}",
                                   format_bytes(needed), memory, format_bytes(budget)));
    budget = needed;
  };
  settle();
  grow(budgets.disk, found.needs.disk.total(), "disk");
  if (apart) {
    const MemoryUsage& host = found.needs.host;
    grow(budgets.host,
         std::max(host.peak_bytes, host.of(MemoryTag::kWeights) + found.needs.loading),
         "host memory");
  }
  // What comes to the memory that computes takes the room that there is: only trying says how much
  // is needed.
  uint64_t& first = apart ? budgets.device : budgets.host;
  const uint64_t had = first, step = std::max(had / 64, uint64_t{64} << 20);
  while (!settle() && first < 64 * had) first += step;
  if (first > had)
    warnings.push_back(
        fmt::format("the plan does not fit: it needs about {} of {} memory, and there are {}",
                    format_bytes(first), apart ? "GPU" : "host", format_bytes(had)));
  found.predicted = predict(planner.hardware, planner.model, found.plan, found.needs, found.size,
                            planner.workload);
  return found;
}

[[noreturn]] void refuse(const Planner& planner) {
  std::string ways;
  const auto add = [&](const char* option, uint64_t Budgets::*budget) {
    if (const auto bytes = planner.smallest(budget))
      ways += fmt::format("{}{} {}", ways.empty() ? "" : " or ", option, format_bytes(*bytes));
  };
  if (planner.hardware.has_device()) add("--gpu-memory", &Budgets::device);
  add("--host-memory", &Budgets::host);
  add("--disk-memory", &Budgets::disk);
  fail(ErrorCode::kOutOfMemory, "{} does not run in {}{} of host memory and {} of disk; {}",
       planner.model.spec.name,
       planner.hardware.has_device() ? format_bytes(planner.budgets.device) + " of GPU memory, "
                                     : "",
       format_bytes(planner.budgets.host), format_bytes(planner.budgets.disk),
       ways.empty() ? "no one of them would be enough alone" : "the smallest that works: " + ways);
}

void warn(const Planner& planner, const FoundPlan& found, bool given,
          std::vector<std::string>& warnings) {
  const PlanOptions& options = planner.options;
  const Prediction& p = found.predicted;
  const auto limit = [&](double most, double needed, const char* what) {
    if (most <= 0 || needed <= most) return;
    warnings.push_back(fmt::format("{} within {:.3g} s {}; {} needs {:.3g}", what, most,
                                   given ? "is too much for the plan" : "is too much for any plan",
                                   given ? "it" : "the best", needed));
  };
  limit(options.max_latency, p.latency_s, "an answer");
  limit(options.max_ttft, p.first_token_s, "a first token");
  if (planner.left_out > 0)
    warnings.push_back(
        fmt::format("{} requests exceed the context and are left out", planner.left_out));
  if (const uint64_t from_disk = found.needs.disk.of(MemoryTag::kWeights))
    warnings.push_back(fmt::format("{:.0f}% of the weights come from disk in every step",
                                   100.0 * static_cast<double>(from_disk) /
                                       static_cast<double>(planner.model.weight_bytes())));
}

// What would gain most: twice a budget, 4-bit weights, 4-bit KV, sparse attention.
std::vector<std::pair<std::string, double>> suggestions_of(const Planner& planner,
                                                           const FoundPlan& found) {
  std::vector<std::pair<std::string, double>> all;
  const auto try_out = [&](const std::string& what, PlanOptions options) {
    const Planner other(options, planner.machine);
    const auto better = search_plans(other.request());
    if (better.empty()) return;
    const double gain =
        better[0].predicted.generated_tokens_per_s / found.predicted.generated_tokens_per_s;
    if (gain > 1.05) all.emplace_back(what, gain);
  };
  const PlanOptions& asked = planner.options;
  if (!asked.compress_weights && !is_quantized(planner.model.main_dtype())) {
    PlanOptions options = asked;
    options.compress_weights = true;
    try_out("--compress-weights", options);
  }
  if (planner.size.kv_type != KvType::kInt4) {
    PlanOptions options = asked;
    options.kv_type = "int4";
    try_out("--compress-kv", options);
  }
  if (asked.attention_topk == 0) {
    PlanOptions options = asked;
    options.attention_topk = 0.1F;
    try_out("--attention-topk 0.1", options);
  }
  const auto twice = [](uint64_t bytes) { return fmt::format("{}MiB", bytes >> 19); };
  if (planner.hardware.has_device()) {
    PlanOptions options = asked;
    options.gpu_memory = twice(planner.budgets.device);
    try_out("twice the GPU memory", options);
  }
  PlanOptions options = asked;
  options.host_memory = twice(planner.budgets.host);
  try_out("twice the host memory", options);
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  return all;
}

json memory_json(const Planner& planner, const FoundPlan& found) {
  const bool apart = planner.hardware.has_device();
  const auto of = [](const MemoryUsage& usage, uint64_t budget, uint64_t besides) {
    json by_tag = json::object();
    for (int tag = 0; tag < kMemoryTagCount; ++tag) {
      if (usage.bytes[tag] > 0)
        by_tag[memory_tag_name(static_cast<MemoryTag>(tag))] = usage.bytes[tag];
    }
    const uint64_t bytes = usage.total() - usage.of(MemoryTag::kWorkspace) + besides;
    if (besides > 0) by_tag[memory_tag_name(MemoryTag::kWorkspace)] = besides;
    return json{{"bytes", bytes},
                {"budget_bytes", budget},
                {"headroom_bytes", static_cast<int64_t>(budget) - static_cast<int64_t>(bytes)},
                {"by_tag", by_tag}};
  };
  const Footprint& needs = found.needs;
  json out;
  if (apart) out["gpu"] = of(needs.device, planner.budgets.device, needs.workspace);
  out["host"] = of(needs.of_host(apart), planner.budgets.host, apart ? 0 : needs.workspace);
  out["disk"] = of(needs.disk, planner.budgets.disk, 0);
  return out;
}

std::string describe_workload(const Planner& planner) {
  const Workload& all = planner.workload;
  if (!planner.options.lengths) {
    return fmt::format("{} requests, prompts of {}, {} tokens each", all.requests(),
                       planner.options.prompt, planner.options.generate);
  }
  const auto mean = [&](int64_t tokens) {
    return static_cast<double>(tokens) / static_cast<double>(all.requests());
  };
  return fmt::format("{} requests, prompts of {:.0f}, {:.0f} tokens each on average",
                     all.requests(), mean(all.prompt_tokens()), mean(all.generated_tokens()));
}

void print_plan(const Planner& planner, const FoundPlan& found, const json& memory,
                const std::vector<std::string>& warnings,
                const std::vector<std::pair<std::string, double>>& suggestions) {
  const auto line = [](const char* key, const std::string& value) {
    print_now(fmt::format("{:<12}{}\n", key, value));
  };
  const Prediction& p = found.predicted;
  const auto shares = [](const TierShares& of) {
    return fmt::format("{:.1f}% GPU, {:.1f}% host, {:.1f}% disk", of.device * 100, of.host * 100,
                       of.disk * 100);
  };
  line("machine", fmt::format("{} ({})", planner.hardware.name, planner.machine.how));
  line("model", fmt::format("{}, {} of weights, {} KV", planner.model.spec.name,
                            format_bytes(static_cast<uint64_t>(planner.model.weight_bytes())),
                            kv_type_name(found.size.kv_type)));
  line("workload", describe_workload(planner));
  const size_t named = found.plan.overrides.size();
  line("weights", shares(found.plan.weights) +
                      (named > 0 ? fmt::format("; but for the plan's {} overrides", named) : ""));
  line("KV", shares(found.plan.kv));
  line("at once", fmt::format("{} sequences{}{}", found.size.sequences,
                              found.plan.micro_batch > 0
                                  ? fmt::format(", {} in a micro-batch", found.plan.micro_batch)
                                  : "",
                              found.plan.kv.host > 0 && planner.hardware.has_device()
                                  ? fmt::format("; the CPU attends to {} of those in host memory",
                                                fmt::format("{:.0f}%", p.cpu_attention * 100))
                                  : ""));
  line("speed", fmt::format("{:.4g} tokens/s generated; decoding {:.4g} tokens/s, prompts {:.4g} s",
                            p.generated_tokens_per_s, p.decode_tokens_per_s, p.prefill_s));
  line("latency", fmt::format("first tokens after {:.3g} s, a step {:.3g} s, all after {:.3g} s",
                              p.first_token_s, p.step_s, p.latency_s));
  line("bottleneck", p.bottleneck_name());
  for (const auto& [name, of] : memory.items()) {
    if (of["bytes"].get<uint64_t>() == 0) continue;
    line(name == "gpu"    ? "GPU memory"
         : name == "host" ? "host memory"
                          : "disk",
         fmt::format("{} of {}", format_bytes(of["bytes"].get<uint64_t>()),
                     format_bytes(of["budget_bytes"].get<uint64_t>())));
  }
  for (const auto& [what, gain] : suggestions)
    line("would help", fmt::format("{}: {:.2f} times as fast", what, gain));
  for (const std::string& warning : warnings) line("warning", warning);
}

int show_frontier(const Planner& planner) {
  const PlanOptions& options = planner.options;
  const std::vector<FrontierPoint> points = find_frontier(planner.request());
  if (points.empty()) refuse(planner);
  std::ofstream file(options.frontier);
  file << frontier_svg(points, fmt::format("{} on {}: {}", planner.model.spec.name,
                                           planner.hardware.name, describe_workload(planner)));
  SPW_CHECK(file.good(), kIo, "{}: cannot be written", printable(options.frontier));
  json all = json::array();
  if (!options.json)
    print_now("  at once   latency  first tokens  tokens/s   weights (GPU, host, disk)\n");
  for (const FrontierPoint& point : points) {
    const Prediction& p = point.found.predicted;
    const TierShares& w = point.found.plan.weights;
    all.push_back({{"sequences", point.found.size.sequences},
                   {"best", point.best},
                   {"predicted", predicted_json(p)},
                   {"plan", json::parse(plan_to_json(planner.complete(point.found)))}});
    if (options.json) continue;
    print_now(fmt::format("{} {:>7} {:>7.3g} s  {:>10.3g} s  {:>8.4g}   {:.0f}, {:.0f}, {:.0f}%\n",
                          point.best ? ' ' : '-', point.found.size.sequences, p.latency_s,
                          p.first_token_s, p.generated_tokens_per_s, w.device * 100, w.host * 100,
                          w.disk * 100));
  }
  if (options.json) print_json({{"machine", planner.hardware.name}, {"frontier", all}}, 2);
  return 0;
}

// What a plan's file says of the run, where no option does.
PlanOptions with_plan_file(PlanOptions options) {
  if (options.placement.plans.empty()) return options;
  const Plan plan = read_plan(options.placement.plans[0]);
  if (plan.compress_weights.value_or(false)) options.compress_weights = true;
  if (plan.kv_type && options.kv_type == "auto") options.kv_type = kv_type_name(*plan.kv_type);
  if (plan.attention_topk && options.attention_topk == 0)
    options.attention_topk = *plan.attention_topk;
  if (plan.chunk && options.chunk == 0) options.chunk = *plan.chunk;
  if (plan.sequences && options.most_at_once == 0) options.most_at_once = *plan.sequences;
  return options;
}

Workload workload_asked(const PlanOptions& options) {
  if (options.lengths) {
    return workload_of(
        read_request_lengths(*options.lengths, static_cast<size_t>(options.requests)));
  }
  return {{{std::max<int64_t>(1, options.requests), options.prompt, options.generate}}};
}

int plan(PlanOptions asked) {
  SPW_CHECK(asked.prompt >= 1 && asked.generate >= 1, kInvalidArgument,
            "--prompt-len and --gen-len are at least 1");
  asked.workload = workload_asked(asked);
  SPW_CHECK(asked.attention_topk >= 0 && asked.attention_topk <= 1, kInvalidArgument,
            "--attention-topk is {}; give a share of the context up to 1, such as 0.1",
            asked.attention_topk);
  const ChosenHardware machine = choose_hardware(asked.hardware);
  const PlanOptions options = with_plan_file(asked);
  const Planner planner(options, machine);
  if (!options.frontier.empty()) return show_frontier(planner);
  std::vector<std::string> warnings;
  std::vector<std::pair<std::string, double>> suggestions;
  FoundPlan best;
  std::optional<Plan> given = options.placement.try_explicit_plan();
  if (given) {
    options.placement.given().apply_to(*given);
    best = priced(planner, *given, warnings);
  } else {
    auto found = search_plans(planner.request());
    if (found.empty()) refuse(planner);
    best = std::move(found.front());
    if (!options.no_advice) suggestions = suggestions_of(planner, best);
  }
  warn(planner, best, given.has_value(), warnings);
  const json memory = memory_json(planner, best);
  const Plan chosen = planner.complete(best);
  if (!options.output.empty()) {
    std::ofstream file(options.output);
    file << plan_to_json(chosen) << "\n";
    SPW_CHECK(file.good(), kIo, "{}: cannot be written", printable(options.output));
  }
  if (!options.trace.empty()) {
    std::ofstream file(options.trace);
    file << trace_of_steps(planner.hardware, planner.model, best.plan, best.needs.layout,
                           {.sequences = best.size.sequences,
                            .tokens_each = 1,
                            .keys = planner.workload.decode_keys()});
    SPW_CHECK(file.good(), kIo, "{}: cannot be written", printable(options.trace));
  }
  if (!options.json) {
    print_plan(planner, best, memory, warnings, suggestions);
    return 0;
  }
  json help = json::array();
  for (const auto& [what, gain] : suggestions) help.push_back({{"what", what}, {"gain", gain}});
  print_json({{"machine", planner.hardware.name},
              {"machine_source", machine.how},
              {"model", planner.model.spec.name},
              {"plan", json::parse(plan_to_json(chosen))},
              {"requests", planner.workload.requests()},
              {"sequences", best.size.sequences},
              {"predicted", predicted_json(best.predicted)},
              {"memory", memory},
              {"bottleneck", best.predicted.bottleneck_name()},
              {"would_help", help},
              {"warnings", warnings}},
             2);
  return 0;
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto* command = app.add_subcommand(
      "plan", "where a model would go and how fast it would be, before anything is loaded");
  auto options = std::make_shared<PlanOptions>();
  command
      ->add_option("-m,--model,MODEL", options->model,
                   "GGUF file, Hugging Face folder, smollm2, or dummy:NAME")
      ->required();
  command->add_option(
      "--hardware", options->hardware,
      "a machine's file, or one of " + fmt::format("{}", fmt::join(shipped_hardware(), ", ")) +
          "; default: this one, as spillway profile measured it, or the nearest of them");
  command->add_option("--gpu-memory", options->gpu_memory, "default: what the machine has");
  command->add_option("--host-memory", options->host_memory, "default: nine tenths of what it has");
  command->add_option("--disk-memory", options->disk_memory, "default: 0");
  auto* const prompt = command->add_option("--prompt-len", options->prompt, "tokens of a prompt")
                           ->capture_default_str();
  auto* const generate =
      command->add_option("--gen-len", options->generate, "tokens to generate for each")
          ->capture_default_str();
  command
      ->add_option("--lengths", options->lengths,
                   "requests of these lengths instead: a file with the tokens of a prompt and of "
                   "its answer in each line, as for bench")
      ->excludes(prompt)
      ->excludes(generate);
  command
      ->add_option("--requests", options->requests,
                   "how many (default: 1); with --lengths, the first so many of the file (all)")
      ->check(CLI::PositiveNumber);
  command->add_option("--batch", options->most_at_once, "most sequences at once; 0: any number")
      ->capture_default_str();
  command->add_option("--kv-type", options->kv_type, "f32, f16, bf16, int8, int4 or auto")
      ->capture_default_str();
  command->add_flag("--compress-weights", options->compress_weights, "4-bit groups");
  command->add_option("--attention-topk", options->attention_topk,
                      "in decode, attend to this share of the context alone; 0: all of it");
  command->add_option("--chunk", options->chunk,
                      "most tokens through a layer together; 0: what suits");
  command->add_option("--objective", options->objective, "throughput or latency")
      ->capture_default_str();
  command->add_option("--max-latency", options->max_latency,
                      "seconds until the last token of a block");
  command->add_option("--max-ttft", options->max_ttft, "seconds until first tokens");
  command->add_option("--trace", options->trace,
                      "writes a simulated step as a Chrome trace, which Perfetto opens");
  command->add_option("--frontier", options->frontier,
                      "instead: latency against throughput for growing numbers of sequences at "
                      "once, as a table, and as a drawing (SVG) in this file");
  command->add_option("-o,--output", options->output,
                      "writes the plan, for --plan of other commands");
  options->placement.add_plan_to(*command, false);
  command->add_flag("--no-overlap", options->placement.no_overlap, "one thing after the other");
  command->add_flag("--no-advice", options->no_advice, "does not look for what would help");
  command->add_flag("--json", options->json, "as JSON");
  command->footer(
      "Examples:\n"
      "  spillway plan model.gguf --requests 64\n"
      "  spillway plan dummy:opt-175b --hardware t4 --requests 256 --disk-memory 1500GiB\n"
      "  spillway plan dummy:opt-30b --hardware h200 --gpu-memory 16GiB -o plan.json\n"
      "  spillway plan dummy:opt-30b --hardware t4 --requests 144 --weights 20,80,0 --kv 0,100,0 "
      "--micro-batch 48");
  command->final_callback([options] { throw CLI::RuntimeError(plan(*options)); });
}

}  // namespace spillway
