// SPDX-License-Identifier: Apache-2.0
// Of a session: what goes where. The rule (plan/fill.h) says whether a run fits and what is
// missing; the planner (plan/search.h) then says which way is the fastest.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "engine/result_settings.h"
#include "engine/session.h"
#include "plan/fill.h"
#include "plan/linear_shares.h"
#include "plan/residence.h"

namespace spillway {
namespace {

// Nobody said how long prompts and answers will be: those of a talk.
constexpr int64_t kUsualPrompt = 512, kUsualAnswer = 256;
// Seconds; of steps that generate.
constexpr double kLongestStep = 0.1;

Workload workload_of(const ExpectedRun& run, const RunSize& size) {
  const int64_t generated =
      run.generated > 0
          ? run.generated
          : std::clamp<int64_t>(kUsualAnswer, 1, std::max<int64_t>(1, size.tokens / 2));
  if (!run.answers.empty()) {
    Workload workload;
    const auto parts = static_cast<int64_t>(run.answers.size());
    const int64_t count = std::max<int64_t>(1, std::max(run.requests, size.sequences) / parts);
    for (const int64_t answer : run.answers) {
      const int64_t generate =
          std::clamp<int64_t>(answer, 1, std::max<int64_t>(1, size.tokens - 1));
      const int64_t most_prompt = std::max<int64_t>(1, size.tokens - generate);
      workload.groups.push_back({.count = count,
                                 .prompt = std::clamp<int64_t>(run.prompt, 1, most_prompt),
                                 .generate = generate});
    }
    return workload;
  }
  const int64_t prompt =
      run.prompt > 0 ? run.prompt : std::clamp<int64_t>(size.tokens - generated, 1, kUsualPrompt);
  return {{{.count = std::max(run.requests, size.sequences),
            .prompt = std::min(prompt, std::max<int64_t>(1, size.tokens - generated)),
            .generate = std::min(generated, size.tokens)}}};
}

}  // namespace

Prediction Session::predict_run(const Workload& workload, int64_t sequences) const {
  const RunSize size = runner_size(workload.longest(), sequences);
  return predict(machine().hardware, loaded->model, plan, needs_of(size), size, workload);
}

RunSize Session::runner_size(int64_t tokens, int64_t sequences) const {
  RunSize size{tokens,
               sequences,
               size_.micro_tokens,
               settings.kv_type,
               load_.access == WeightAccess::kMapped,
               size_.same_parts,
               size_.whole_sequences,
               size_.at_once};
  size.most_turning = most_turning(size);
  return size;
}

int Session::most_turning(const RunSize& size) const {
  const std::optional<int> given = options_.placement.kv_turns();
  if (given == 0 || device->host_visible()) return 0;
  const Footprint needs = footprint(loaded->model, plan, size, traits_within(budgets_));
  TurnSizes turns = needs.layout.turns;
  if (given) {
    int least = 1;
    while (least < turns.layers && !turns.gains_with(least)) ++least;
    SPW_CHECK(*given >= least && *given < turns.layers, kInvalidArgument,
              "--kv-expansion is {}; of {} layers, none or {} to {} can take turns", *given,
              turns.layers, least, turns.layers - 1);
    return turns.blocks > 0 ? *given : 0;
  }
  // Nothing is gained where one memory is both, or where each sequence is cut for what there is.
  if (device->info().unified_memory || turns.blocks == 0 || needs.layout.spans()) return 0;
  // What the link cannot bring in the longest of steps never takes turns; nor does it take more
  // than half of what is left of the host's memory.
  const RateCurve& link = machine().hardware.to_device;
  const double in_a_step = link.empty() ? 0 : link.best() * kLongestStep;
  const uint64_t left =
      budgets_.host - std::min(budgets_.host, needs.host.peak_bytes + needs.host_workspace);
  const double most_bytes = std::min(in_a_step, static_cast<double>(left) / 2);
  while (turns.most + 1 < turns.layers) {
    ++turns.most;
    const double bytes = static_cast<double>(turns.most) * turns.most_blocks() *
                         static_cast<double>(2 * needs.layout.kv.plane_block_bytes());
    if (bytes <= most_bytes) continue;
    --turns.most;
    break;
  }
  return turns.gains_with(turns.most) ? turns.most : 0;
}

Footprint Session::needs_of(const RunSize& size) const {
  return footprint(loaded->model, plan, size, traits_within(budgets_));
}

Prediction Session::predict_run() const {
  return predict_run(expected_workload(), size_.sequences);
}

Workload Session::expected_workload() const { return workload_of(run_, size_); }

Session::Placed Session::place(const FitTrial& trial, const ExpectedRun& run, size_t which) const {
  const PlacementOptions& options = options_.placement;
  Model compressed;
  if (trial.compress && !load_.compress) {
    compressed = loaded->model;
    compress_matrices(compressed);
  }
  const Model& model = compressed.weights.empty() ? loaded->model : compressed;
  const bool apart = !device->host_visible();
  const DeviceTraits traits = traits_within(trial.budgets);
  // As the options say, or by the rule.
  std::optional<Plan> by_hand;
  if (!trial.by_rule) by_hand = options.try_explicit_plan(which);
  if (trial.kv) {
    if (!by_hand) by_hand.emplace();
    by_hand->kv = *trial.kv;
  }
  Placed placed{.by_hand = by_hand.has_value(), .size = trial.size};
  if (by_hand) {
    placed.plan = *by_hand;
  } else if (apart || trial.budgets.host_is_limited) {
    placed.plan = fill_from_the_top(model, trial.size, traits, careful(trial.budgets));
  }
  options.given().apply_to(placed.plan);
  placed.size.at_once = at_once_by(placed, model, traits);
  // Where shares are given by options, what is left open is as the planner would have it.
  const bool open = by_hand && options.plans.empty() && !options.kept && options.cpu_linear.empty();
  if (apart && open && !settings.deterministic && placed.plan.weights.device < 1) {
    const Hardware& hardware = machine().hardware;
    const auto price = [&](const Plan& of) {
      return predict(hardware, model, of, footprint(model, of, placed.size, traits), placed.size,
                     workload_of(run, placed.size));
    };
    const Prediction alone = price(placed.plan);
    Plan shared = placed.plan;
    shared.cpu_linear = balanced_linear_shares(hardware, model, shared,
                                               footprint(model, shared, placed.size, traits).layout,
                                               placed.size.sequences, alone);
    if (!shared.cpu_linear.empty()) {
      const Plan by_gain = with_residence_by_gain(hardware, model, shared, placed.size.sequences);
      const bool fits_too =
          fits(footprint(model, by_gain, placed.size, traits), traits, trial.budgets);
      if (fits_too && price(by_gain).total_s() < kSurelyBetter * price(shared).total_s())
        shared = by_gain;
    }
    if (price(shared).total_s() < alone.total_s()) placed.plan = std::move(shared);
  }
  settle(placed, model, run, trial.budgets);
  return placed;
}

// A job that goes on has as many as it had. Where others do not wait for room, or what they take of
// a plan that somebody made changes who attends and in which parts: none.
int64_t Session::at_once_by(const Placed& placed, const Model& model,
                            const DeviceTraits& traits) const {
  const Plan& by = placed.plan;
  if (placed.size.at_once == 0 || by.schedule != ScheduleKind::kContinuous) return 0;
  if (!placed.by_hand) return placed.size.at_once;
  if (by.at_once) return *by.at_once;
  if (options_.placement.kept) return options_.placement.kept->at_once.value_or(0);
  RunSize whole = placed.size;
  whole.at_once = 0;
  const RunLayout with = footprint(model, by, placed.size, traits).layout,
                  without = footprint(model, by, whole, traits).layout;
  const auto all = [&](auto&& is) { return is(with) && is(without); };
  const bool alike =
      with.blocks_away() == 0 || with.staging_blocks == without.staging_blocks ||
      all([](const RunLayout& of) { return of.staging_blocks >= of.sequence_blocks; }) ||
      all([](const RunLayout& of) {
        return of.fixed_blocks > 0 && of.staging_blocks >= of.least_staging();
      });
  return alike && with.parts == without.parts ? placed.size.at_once : 0;
}

void Session::settle(Placed& placed, const Model& model, const ExpectedRun& run,
                     const Budgets& budgets) const {
  if (settings.deterministic && placed.plan.attention == AttentionPlace::kAuto)
    placed.plan.attention = same_for_every_sequence(placed.plan);
  // Nor may the cut of linear layers depend on who else is there: the one for most tokens holds.
  if (settings.deterministic && !placed.plan.cpu_linear.empty()) {
    CpuLinearShare last = placed.plan.cpu_linear.back();
    if (last.tokens < placed.size.micro_tokens) last = {};
    last.tokens = kAnyTokens;
    placed.plan.cpu_linear = {last};
  }
  RunSize least = placed.size;
  if (run.least_tokens > 0) least.tokens = std::min(least.tokens, run.least_tokens);
  if (run.least_sequences > 0) least.sequences = std::min(least.sequences, run.least_sequences);
  placed.needs = footprint(model, placed.plan, least, traits_within(budgets));
  check_fits(placed.needs, !device->host_visible(), budgets);
}

std::optional<Session::Placed> Session::try_planned(const Placed& by_rule, const RunSize& wanted,
                                                    const ExpectedRun& run) const {
  const bool apart = !device->host_visible();
  // Nothing is faster than everything on the device, all of the sequences at once.
  const bool all_there = by_rule.plan.all_on_device() && by_rule.size.sequences == wanted.sequences;
  if (by_rule.by_hand || (all_there && !run.finds_sequences)) return std::nullopt;
  if (!apart && !budgets_.host_is_limited && !run.finds_sequences) return std::nullopt;
  RunSize size = by_rule.size;
  size.sequences = wanted.sequences;
  const DeviceTraits traits = traits_within(budgets_);
  auto found = search_plans(
      {.hardware = machine().hardware,
       .model = loaded->model,
       .traits = traits,
       .workload = workload_of(run, size),
       .budgets = careful(budgets_),
       .size = size,
       .attention_topk = settings.attention_topk,
       .smallest_chunk = size.micro_tokens,
       .most_sequences = wanted.sequences,
       .least_sequences = run.least_sequences > 0 ? run.least_sequences : size.sequences,
       .given = options_.placement.given(),
       .same_for_every_sequence = settings.deterministic});
  if (found.empty()) return std::nullopt;
  Placed placed{.plan = std::move(found.front().plan), .size = found.front().size};
  // Priced for those that it has room for: cut in as many for all.
  if (placed.plan.micro_batch > 0 && !options_.placement.given().micro_batch)
    placed.plan.micro_batch = static_cast<int>(std::min<int64_t>(
        size.micro_tokens,
        (placed.plan.micro_batch * placed.size.at_work() + placed.size.sequences - 1) /
            placed.size.sequences));
  try {
    settle(placed, loaded->model, run, budgets_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    return std::nullopt;
  }
  return placed;
}

FitLimits Session::what_may_change(const ExpectedRun& run) const {
  const PlacementOptions& options = options_.placement;
  FitLimits limits;
  limits.shortest_tokens = run.shortest_tokens;
  limits.sequences_option = run.sequences_option;
  for (const auto& [option, given] : {std::pair("--plan", !options.plans.empty()),
                                      {"--weights", !options.weights.empty()},
                                      {"--embeddings", !options.embeddings.empty()},
                                      {"--kv", !options.kv.empty()},
                                      {"--activations", !options.activations.empty()}}) {
    if (!given) continue;
    limits.plan_option += fmt::format("{}{}", limits.plan_option.empty() ? "" : " and ", option);
  }
  limits.compressible = !load_.compress;
  limits.has_device = !device->host_visible();
  // What nobody limited cannot be raised.
  if (!options.host_memory.empty())
    limits.host_bytes = static_cast<uint64_t>(host_memory().total_bytes);
  if (limits.has_device && !options_.gpu_memory.empty()) {
    for (const DeviceInfo& gpu : services_.devices.gpus()) {
      if (gpu.name == device->info().name)
        limits.device_bytes = static_cast<uint64_t>(gpu.memory_bytes);
    }
  }
  std::error_code unknown;
  const auto space = std::filesystem::space(disk_dir, unknown);
  if (!unknown) limits.disk_bytes = space.available;
  return limits;
}

void Session::place_what_fits(const ExpectedRun& run, size_t which) {
  const bool chunk_given = options_.compute.chunk > 0;
  const int chunk =
      chunk_given ? options_.compute.chunk : usual_chunk(!device->host_visible(), run.tokens);
  const bool may_wait = may_preempt(settings.attention_topk, settings.deterministic);
  const RunSize wanted{run.tokens,
                       run.sequences,
                       chunk,
                       settings.kv_type,
                       load_.access == WeightAccess::kMapped,
                       settings.deterministic,
                       settings.attention_topk > 0,
                       may_wait ? run.at_once : 0};
  RunSize least = wanted;
  if (run.least_sequences > 0) least.sequences = run.least_sequences;
  if (!chunk_given) least.micro_tokens = kSmallestChunk;
  if (run.least_context > 0) least.tokens = std::min(run.least_context, wanted.tokens);
  std::vector<RunSize> sizes;
  for (RunSize size : smaller_runs(wanted, least)) {
    sizes.push_back(size);
    if (std::exchange(size.at_once, 0) > size.sequences) sizes.push_back(size);
  }
  FitTrial trial{.size = wanted, .budgets = budgets_, .compress = load_.compress};
  for (const RunSize& size : sizes) {
    trial.size = size;
    try {
      Placed placed = place(trial, run, which);
      if (auto planned = try_planned(placed, wanted, run)) placed = std::move(*planned);
      if (auto shared = try_shared(placed, wanted, run)) placed = std::move(*shared);
      plan = std::move(placed.plan);
      size_ = placed.size;
      needs_ = std::move(placed.needs);
      if (size_.micro_tokens < chunk)
        log_info("memory is short: steps of {} tokens, not {}", size_.micro_tokens, chunk);
      if (size_.tokens < wanted.tokens)
        log_warning("memory is short: a context of {} tokens, not {}", size_.tokens, wanted.tokens);
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      if (&size != &sizes.back()) continue;
      const auto fits = [&](const FitTrial& other) {
        try {
          place(other, run, which);
          return true;
        } catch (const Error&) {
          return false;
        }
      };
      fail(ErrorCode::kOutOfMemory, "{}; {}", error.what(),
           what_helps(trial, what_may_change(run), fits));
    }
  }
}

void Session::choose_plan(const ExpectedRun& asked, size_t which) {
  if (options_.tuning.measure) measure_what_is_missing();
  const ModelSpec& spec = loaded->model.spec;
  run_ = asked;
  which_ = which;
  if (run_.tokens == 0) run_.tokens = context_tokens(0);
  if (!has_any_context(options_.model, spec)) run_.tokens = std::min(run_.tokens, spec.max_context);
  budgets_ = budgets_now();
  try {
    place_what_fits(run_, which);
  } catch (const Error& error) {
    // A job that goes on may have less memory than it had. Where its results would be others by
    // another plan, its journal will say so.
    if (error.code() != ErrorCode::kOutOfMemory || !options_.placement.kept) throw;
    options_.placement.kept.reset();
    place_what_fits(run_, which);
  }
  describe_run();
}

bool Session::try_place_again(const Error& refused) {
  const bool has_choice = !device->host_visible() || budgets_.host_is_limited;
  if (refused.code() != ErrorCode::kOutOfMemory || !has_choice ||
      options_.placement.try_explicit_plan(which_))
    return false;
  const auto before = std::tuple(plan, size_, needs_, budgets_, settings);
  ExpectedRun run = run_;
  run.sequences = size_.sequences;
  run.tokens = size_.tokens;
  run.finds_sequences = false;
  run.least_sequences = run.least_context = 0;
  budgets_.device = budgets_.device / 10 * 9;
  budgets_.host = budgets_.host / 10 * 9;
  bool placed = false, same_results = false;
  try {
    place_what_fits(run, which_);
    describe_run();
    placed = true;
    same_results = settings == std::get<ResultSettings>(before);
  } catch (const Error&) {
    // There is none: what was refused first is the better message.
  }
  // A job's identity is known by now.
  if (!placed || (!same_results && run_.results_are_fixed)) {
    std::tie(plan, size_, needs_, budgets_, settings) = before;
    return false;
  }
  refused_ = refused.what();
  return true;
}

}  // namespace spillway
