// SPDX-License-Identifier: Apache-2.0
#include "engine/planner.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/byte_units.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/plain_numbers.h"
#include "base/printable.h"
#include "engine/loaded_model.h"
#include "engine/model_catalog.h"
#include "engine/model_fingerprint.h"
#include "engine/session.h"
#include "plan/fill.h"
#include "plan/machine_traits.h"
#include "storage/model_files.h"

namespace spillway {
namespace {

Model model_of(const PlanQuestion& question) {
  const std::string path = resolve_model(question.model);
  const auto dummy = try_dummy_name(path);
  Model model = dummy ? describe_dummy_model(*dummy) : describe_model(open_model(path));
  widen_vectors(model);
  if (question.compute.compress_weights) compress_matrices(model);
  return model;
}

}  // namespace

Planner::Planner(const PlanQuestion& question_, const ChosenHardware& machine_)
    : question(question_), model(model_of(question_)), machine(machine_) {
  const bool apart = hardware.has_device();
  const auto memory = [](const std::string& text, const char* option, uint64_t otherwise) {
    return text.empty() ? otherwise : parse_memory(text, option);
  };
  budgets.device =
      apart ? memory(question.gpu_memory, "--gpu-memory", hardware.gpu->memory_bytes) : 0;
  budgets.host = memory(question.host_memory, "--host-memory", hardware.host.memory_bytes / 10 * 9);
  budgets.disk = memory(question.disk_memory, "--disk-memory", 0);
  budgets.host_is_limited = !question.host_memory.empty();
  traits = traits_of_machine(hardware, budgets);
  size.kv_type = question.compute.try_kv_type().value_or(default_kv_type(model));
  const int chunk = question.compute.chunk;
  size.micro_tokens =
      chunk > 0 ? chunk : usual_chunk(apart || hardware.gpu, question.workload.longest());
  size.whole_sequences = question.compute.checked_topk() > 0;
  workload = question.workload;
  if (question.mixed_lengths && !has_any_context(question.model, model.spec))
    leave_out_long_requests();
}

void Planner::leave_out_long_requests() {
  const int64_t before = workload.requests();
  std::erase_if(workload.groups, [&](const RequestGroup& group) {
    return group.prompt + group.generate > model.spec.max_context;
  });
  left_out = before - workload.requests();
  SPW_CHECK(workload.requests() > 0, kInvalidArgument,
            "all {} requests exceed the model's context of {} tokens", before,
            model.spec.max_context);
}

SearchRequest Planner::request() const {
  SearchRequest asked{.hardware = hardware,
                      .model = model,
                      .traits = traits,
                      .workload = workload,
                      .budgets = budgets,
                      .size = size,
                      .attention_topk = question.compute.checked_topk(),
                      .most_sequences = question.most_at_once};
  if (question.compute.chunk > 0) asked.smallest_chunk = question.compute.chunk;
  SPW_CHECK(question.objective == "throughput" || question.objective == "latency", kInvalidArgument,
            "--objective is '{}'; give throughput or latency", printable(question.objective));
  if (question.objective == "latency") asked.objective = Objective::kLatency;
  if (question.max_latency > 0) asked.max_latency_s = question.max_latency;
  if (question.max_ttft > 0) asked.max_first_token_s = question.max_ttft;
  asked.given = question.placement.given();
  return asked;
}

std::optional<uint64_t> Planner::smallest(uint64_t Budgets::*budget) const {
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

FoundPlan Planner::best() const {
  auto found = search_plans(request());
  if (found.empty()) refuse();
  return std::move(found.front());
}

Plan Planner::complete(const FoundPlan& found) const {
  Plan plan = found.plan;
  if (plan.attention == AttentionPlace::kAuto && plan.kv.host > 0 && hardware.has_device())
    plan.cpu_attention = found.predicted.cpu_attention;
  plan.compress_weights = question.compute.compress_weights;
  plan.kv_type = found.size.kv_type;
  plan.attention_topk = question.compute.checked_topk();
  plan.context = found.size.tokens;
  plan.chunk = found.size.micro_tokens;
  plan.sequences = static_cast<int>(found.size.sequences);
  plan.made_for = {model_fingerprint(resolve_model(question.model)),
                   digest128(hardware_to_json(hardware))};
  return plan;
}

FoundPlan Planner::priced(const Plan& plan, std::vector<std::string>& warnings) const {
  const bool apart = hardware.has_device();
  FoundPlan found{.plan = plan, .size = size};
  const int64_t asked = question.most_at_once, requests = workload.requests();
  found.size.sequences = asked > 0 ? std::min(asked, requests) : requests;
  found.size.tokens = workload.longest();
  found.plan.attention_topk = question.compute.checked_topk();
  Budgets enough = budgets;
  const auto settle = [&] {
    const DeviceTraits there = traits_of_machine(hardware, enough);
    found.needs = footprint(model, plan, found.size, there);
    return fits(found.needs, there, enough);
  };
  const auto grow = [&](uint64_t& budget, uint64_t needed, const char* memory) {
    if (needed <= budget) return;
    warnings.push_back(fmt::format("the plan does not fit: it needs {} of {}, and there are {}",
                                   format_bytes(needed), memory, format_bytes(budget)));
    budget = needed;
  };
  settle();
  grow(enough.disk, found.needs.disk.total(), "disk");
  if (apart) {
    const MemoryUsage& host = found.needs.host;
    grow(enough.host, std::max(host.peak_bytes, host.of(MemoryTag::kWeights) + found.needs.loading),
         "host memory");
  }
  // What comes to the memory that computes takes the room that there is: only trying says how much
  // is needed.
  uint64_t& first = apart ? enough.device : enough.host;
  const uint64_t had = first, step = std::max(had / 64, uint64_t{64} << 20);
  while (!settle() && first < 64 * had) first += step;
  if (first > had)
    warnings.push_back(
        fmt::format("the plan does not fit: it needs about {} of {} memory, and there are {}",
                    format_bytes(first), apart ? "GPU" : "host", format_bytes(had)));
  found.predicted = predict(hardware, model, found.plan, found.needs, found.size, workload);
  return found;
}

void Planner::refuse() const {
  std::string ways;
  const auto add = [&](const char* option, uint64_t Budgets::*budget) {
    if (const auto bytes = smallest(budget))
      ways += fmt::format("{}{} {}", ways.empty() ? "" : " or ", option, format_bytes(*bytes));
  };
  if (hardware.has_device()) add("--gpu-memory", &Budgets::device);
  add("--host-memory", &Budgets::host);
  add("--disk-memory", &Budgets::disk);
  fail(ErrorCode::kOutOfMemory, "{} does not run in {}{} of host memory and {} of disk; {}",
       model.spec.name,
       hardware.has_device() ? format_bytes(budgets.device) + " of GPU memory, " : "",
       format_bytes(budgets.host), format_bytes(budgets.disk),
       ways.empty() ? "no one of them would be enough alone" : "the smallest that works: " + ways);
}

void Planner::warn(const FoundPlan& found, bool given, std::vector<std::string>& warnings) const {
  const Prediction& p = found.predicted;
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
    warnings.push_back(fmt::format(
        "{:.0f}% of the weights come from disk in every step",
        100.0 * static_cast<double>(from_disk) / static_cast<double>(model.weight_bytes())));
}

std::vector<Suggestion> Planner::suggestions(const FoundPlan& found) const {
  std::vector<Suggestion> all;
  const auto try_out = [&](const std::string& what, const PlanQuestion& others) {
    const Planner other(others, machine);
    const auto better = search_plans(other.request());
    if (better.empty()) return;
    const double gain =
        better[0].predicted.generated_tokens_per_s / found.predicted.generated_tokens_per_s;
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
