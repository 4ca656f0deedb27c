// SPDX-License-Identifier: Apache-2.0
#include "engine/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/byte_units.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/plain_numbers.h"
#include "base/printable.h"
#include "engine/loaded_model.h"
#include "engine/model_catalog.h"
#include "engine/model_fingerprint.h"
#include "engine/session.h"
#include "plan/greedy_placement.h"
#include "plan/machine_traits.h"
#include "plan/weight_homes.h"
#include "storage/model_files.h"

namespace spillway {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Describes the model as describe_for_loading() does for a device of this kind.
Model model_of(const PlanQuestion& question, bool has_device) {
  const std::string path = resolve_model(question.model);
  const auto dummy = try_dummy_name(path);
  Model model = dummy ? describe_dummy_model(*dummy) : describe_model(open_model(path));
  if (has_device) widen_vectors(model);
  if (question.compute.compress_weights) compress_matrices(model);
  return model;
}

Objective parse_objective(const std::string& text) {
  SPW_CHECK(text == "throughput" || text == "latency", kInvalidArgument,
            "--objective is '{}'; give throughput or latency", printable(text));
  return text == "latency" ? Objective::kLatency : Objective::kThroughput;
}

}  // namespace

struct Planner::Shared {
  Shared(const PlanQuestion& question, const ChosenHardware& machine)
      : model(model_of(question, machine.hardware.has_device())),
        context(model, question.compute.compress_weights,
                machine.traits ? *machine.traits : traits_of_machine(machine.hardware, {}),
                [&machine]() -> const Hardware& { return machine.hardware; }) {}
  const Model model;
  PlanContext context;
};

Planner::Planner(const PlanQuestion& question_, const ChosenHardware& machine_)
    : Planner(question_, machine_, std::make_shared<Shared>(question_, machine_)) {}

Planner::Planner(const PlanQuestion& question_, const ChosenHardware& machine_,
                 std::shared_ptr<Shared> shared_)
    : question(question_),
      machine(machine_),
      shared(std::move(shared_)),
      model(shared->context.model(question_.compute.compress_weights)) {
  const bool discrete = hardware.has_device();
  const auto memory = [](const std::string& text, const char* option, uint64_t otherwise) {
    return text.empty() ? otherwise : parse_memory(text, option);
  };
  budgets.device =
      discrete ? memory(question.gpu_memory, "--gpu-memory", hardware.gpu->memory_bytes) : 0;
  budgets.host = memory(question.host_memory, "--host-memory",
                        machine.free_host_bytes.value_or(hardware.host.memory_bytes));
  budgets.disk = memory(question.disk_memory, "--disk-memory", 0);
  budgets.host_is_limited = !question.host_memory.empty();
  if (const auto most = question.placement.memory_of_plan()) {
    if (question.disk_memory.empty()) budgets.disk = most->disk.value_or(0);
    budgets = within(budgets, *most);
  }
  traits = traits_within(careful(budgets));
  size.kv_type = question.compute.try_kv_type().value_or(default_kv_type(model));
  const int chunk = question.compute.chunk;
  size.micro_tokens =
      chunk > 0 ? chunk : usual_chunk(discrete || hardware.gpu, question.workload.longest());
  size.whole_sequences = question.compute.checked_topk() > 0;
  size.same_partitions = question.deterministic;
  size.draft_tokens = question.lookup_drafts ? kMostDrafts : 0;
  workload = question.workload;
  if (!has_any_context(question.model, model.spec)) check_lengths();
}

DeviceTraits Planner::traits_within(const Budgets& within) const {
  return machine.traits ? with_budgets(*machine.traits, within)
                        : traits_of_machine(hardware, within);
}

const std::vector<Tier>& Planner::homes(const Plan& plan) const {
  return shared->context.weights(question.compute.compress_weights).homes(plan).of;
}

void Planner::check_lengths() {
  const int64_t before = workload.requests(), most = model.spec.max_context;
  if (question.usual_prompt && !question.mixed_lengths) {
    for (RequestGroup& group : workload.groups)
      group.prompt = std::max<int64_t>(1, std::min(group.prompt, most - group.generate));
  }
  std::erase_if(workload.groups,
                [&](const RequestGroup& group) { return group.prompt + group.generate > most; });
  left_out = before - workload.requests();
  if (!question.mixed_lengths) {
    const RequestGroup& asked = question.workload.groups.front();
    SPW_CHECK(left_out == 0, kInvalidArgument,
              "--prompt-len {} and --gen-len {} exceed the {} positions of {}; give at most {} "
              "together",
              asked.prompt, asked.generate, most, model.spec.name, most);
  }
  SPW_CHECK(workload.requests() > 0, kInvalidArgument,
            "all {} requests exceed the model's context of {} tokens", before, most);
}

SearchRequest Planner::request() const {
  SearchRequest asked{.hardware = hardware,
                      .model = model,
                      .traits = traits,
                      .workload = workload,
                      .budgets = careful(budgets),
                      .size = size,
                      .attention_topk = question.compute.checked_topk(),
                      .most_sequences = question.max_concurrent};
  if (question.compute.chunk > 0) asked.smallest_chunk = question.compute.chunk;
  asked.objective = parse_objective(question.objective);
  if (question.max_latency > 0) asked.max_latency_s = question.max_latency;
  if (question.max_ttft > 0) asked.max_first_token_s = question.max_ttft;
  asked.given = question.placement.given();
  asked.steps = &shared->context.steps(question.compute.compress_weights);
  asked.on_progress = question.on_progress;
  return asked;
}

PlanRequest Planner::placement() const {
  const int64_t requests = workload.requests(), most = question.max_concurrent;
  const bool given = by_hand();
  PlanRequest asked{.context = shared->context,
                    .compressed = question.compute.compress_weights,
                    .traits = [this](const Budgets& within) { return traits_within(within); },
                    .budgets = budgets,
                    .run = {.tokens = workload.longest(),
                            .sequences = most > 0 ? std::min(most, requests) : requests,
                            .requests = requests,
                            .finds_sequences = !given,
                            .least_sequences = given ? 0 : 1},
                    .workload = workload,
                    .kv_type = size.kv_type,
                    .attention_topk = question.compute.checked_topk(),
                    .chunk = question.compute.chunk,
                    .usual_chunk = size.micro_tokens,
                    .draft_tokens = size.draft_tokens,
                    .expansion = question.placement.expansion(),
                    .lookup_drafts = question.lookup_drafts,
                    .deterministic = question.deterministic,
                    .objective = parse_objective(question.objective)};
  if (question.max_latency > 0) asked.max_latency_s = question.max_latency;
  if (question.max_ttft > 0) asked.max_first_token_s = question.max_ttft;
  asked.on_progress = question.on_progress;
  question.placement.constrain(asked);
  // A given plan that does not fit is estimated all the same.
  if (!given) asked.limits = [this] { return fit_limits(); };
  return asked;
}

FitLimits Planner::fit_limits() const {
  // Any run fits into this much of each memory, if more of one is enough at all.
  const uint64_t plenty = 4 * static_cast<uint64_t>(model.weight_bytes()) + (uint64_t{64} << 30);
  FitLimits limits;
  limits.compressible = !question.compute.compress_weights;
  limits.has_device = hardware.has_device();
  limits.machine = hardware.name;
  limits.present.host = hardware.host.memory_bytes;
  limits.present.disk = hardware.disk_bytes;
  if (limits.has_device) limits.present.device = hardware.gpu->memory_bytes;
  limits.host_bytes = std::max(plenty, limits.present.host);
  limits.disk_bytes = std::max(plenty, limits.present.disk);
  limits.device_bytes = limits.has_device ? std::max(plenty, limits.present.device) : 0;
  return limits;
}

ResolvedPlan Planner::resolve_within(const Plan& plan, const RunSize& of,
                                     const Budgets& within) const {
  return resolve(shared->context, question.compute.compress_weights, plan, of,
                 traits_within(within), within, question.placement.expansion());
}

FoundPlan Planner::found(const ResolvedPlan& resolved) const {
  return {.plan = resolved.plan,
          .size = resolved.size,
          .needs = resolved.needs,
          .predicted = shared->context.price(resolved.plan, resolved.needs, resolved.size, workload,
                                             question.compute.compress_weights)};
}

std::optional<FoundPlan> Planner::try_with_at_least(int64_t sequences) const {
  PlanRequest asked = placement();
  if (!by_hand()) asked.run.least_sequences = std::min(sequences, asked.run.sequences);
  asked.coarse = true;
  return try_placed(std::move(asked));
}

std::optional<FoundPlan> Planner::try_placed(PlanRequest asked) const {
  asked.limits = nullptr;
  try {
    return found(choose_plan(asked));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    return std::nullopt;
  }
}

FoundPlan Planner::answer(std::vector<std::string>& warnings) const {
  const auto given = question.placement.try_explicit_plan();
  if (!given) return found(choose_plan(placement()));
  // A run refuses shares on disk without a disk budget; here they are estimated.
  const bool no_disk =
      budgets.disk == 0 && resolve_within(*given, placement_size(), budgets).needs.disk.total() > 0;
  std::optional<FoundPlan> fitting;
  if (!no_disk) fitting = try_best();
  if (!fitting) return priced_beyond_budgets(warnings);
  const MemoryNeeds most =
      most_needed(fitting->needs, hardware.has_device(), budgets.host_is_limited);
  const auto look = [&](uint64_t needed, uint64_t budget, const char* memory) {
    if (needed <= budget) return;
    warnings.push_back(fmt::format(
        "the plan fits only just: with what loading and kernels take besides it needs {} of {}, "
        "and there are {}",
        format_bytes(needed), memory, format_bytes(budget)));
  };
  look(most.device, budgets.device, "GPU memory");
  look(most.host, budgets.host, "host memory");
  return std::move(*fitting);
}

Plan Planner::complete(const FoundPlan& found) const {
  Plan plan = completed(found.plan, found.size, placement());
  if (plan.attention == AttentionPlace::kAuto && plan.kv.host > 0 && hardware.has_device())
    plan.cpu_attention = found.predicted.cpu_attention;
  plan.made_for = {model_fingerprint(resolve_model(question.model)),
                   digest128(hardware_to_json(hardware))};
  return plan;
}

RunSize Planner::placement_size() const {
  RunSize all = size;
  const int64_t requests = workload.requests(), most = question.max_concurrent;
  all.sequences = most > 0 ? std::min(most, requests) : requests;
  all.tokens = workload.longest();
  return all;
}

FoundPlan Planner::priced_beyond_budgets(std::vector<std::string>& warnings) const {
  const bool discrete = hardware.has_device();
  const Plan plan = plan_as_given(placement(), placement_size());
  ResolvedPlan resolved;
  Budgets enough = budgets;
  const auto fits_in = [&](const Budgets& within) {
    resolved = resolve_within(plan, placement_size(), within);
    return fit_of(resolved.needs, discrete, within).fits();
  };
  const auto grow = [&](uint64_t Budgets::*which, uint64_t needed, const char* memory) {
    if (needed <= budgets.*which) return;
    warnings.push_back(fmt::format("the plan does not fit: it needs {} of {}, and there are {}",
                                   format_bytes(needed), memory, format_bytes(budgets.*which)));
    enough.*which = needed;
  };
  fits_in(enough);
  const MemoryNeeds most = most_needed(resolved.needs, discrete, budgets.host_is_limited);
  grow(&Budgets::disk, most.disk, "disk");
  if (discrete) grow(&Budgets::host, most.host, "host memory");
  // Staged KV takes what is left of the memory of the device that computes, so only trying shows
  // how much is needed.
  const auto first = discrete ? &Budgets::device : &Budgets::host;
  if (!fits_in(enough)) {
    const uint64_t had = budgets.*first;
    uint64_t low = had / kMiB, high = low + 1;
    const auto fits_mib = [&](uint64_t mib) {
      Budgets within = enough;
      within.*first = mib * kMiB;
      return fits_in(within);
    };
    while (!fits_mib(high) && high < (uint64_t{1} << 30)) {
      low = high;
      high += std::max<uint64_t>(1, high - had / kMiB);
    }
    while (high - low > std::max<uint64_t>(1, low / 1024)) {
      const uint64_t middle = low + (high - low) / 2;
      (fits_mib(middle) ? high : low) = middle;
    }
    grow(first, high * kMiB, discrete ? "GPU memory" : "host memory");
    fits_in(enough);
  }
  return found(resolve_within(plan, placement_size(), enough));
}

void Planner::warn(const FoundPlan& found, std::vector<std::string>& warnings) const {
  const Prediction& p = found.predicted;
  const bool given = by_hand();
  const auto limit = [&](double most, double needed, const char* what) {
    if (most <= 0 || needed <= most) return;
    warnings.push_back(fmt::format("{} within {} {}; {} needs {}", what, format_seconds(most),
                                   given ? "is too much for the plan" : "is too much for any plan",
                                   given ? "it" : "the best", format_seconds(needed)));
  };
  limit(question.max_latency, p.latency_s, "an answer");
  limit(question.max_ttft, p.first_token_s, "a first token");
  if (left_out > 0)
    warnings.push_back(
        fmt::format("{} beyond the context left out", format_count(left_out, "request")));
  if (const uint64_t from_disk = found.needs.disk.of(MemoryTag::kWeights))
    warnings.push_back(
        fmt::format("{:.1f}% of the layers' matrices, {}, come from disk in every step",
                    100 * placed_shares(model, homes(found.plan), hardware.has_device()).disk,
                    format_bytes(from_disk)));
  if (!hardware.has_device()) {
    for (const std::string& line : question.placement.without_gpu(question.gpu_memory))
      warnings.push_back(line);
  }
}

std::vector<Suggestion> Planner::suggestions(const FoundPlan& found) const {
  std::vector<Suggestion> all;
  const auto try_out = [&](const std::string& what, const PlanQuestion& others) {
    const Planner other(others, machine, shared);
    // No suggestion may be for fewer sequences.
    const auto better = other.try_with_at_least(found.size.sequences);
    if (!better) return;
    const double gain =
        better->predicted.generated_tokens_per_s / found.predicted.generated_tokens_per_s;
    if (gain > 1.05) all.push_back({what, gain});
  };
  if (!question.compute.compress_weights && !is_quantized(model.main_dtype())) {
    PlanQuestion others = question;
    others.compute.compress_weights = true;
    try_out("--compress-weights", others);
  }
  if (size.kv_type != KvType::kInt4) {
    PlanQuestion others = question;
    others.compute.kv_type = "int4";
    try_out("--compress-kv", others);
  }
  if (question.compute.attention_topk == 0) {
    PlanQuestion others = question;
    others.compute.attention_topk = 0.1F;
    try_out("--attention-topk 0.1", others);
  }
  const auto twice = [](uint64_t bytes) { return fmt::format("{}MiB", bytes >> 19); };
  if (hardware.has_device()) {
    PlanQuestion others = question;
    others.gpu_memory = twice(budgets.device);
    try_out("twice the GPU memory", others);
  }
  PlanQuestion others = question;
  others.host_memory = twice(budgets.host);
  try_out("twice the host memory", others);
  std::ranges::sort(all, std::greater(), &Suggestion::gain);
  return all;
}

}  // namespace spillway
