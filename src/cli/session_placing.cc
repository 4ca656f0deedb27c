// SPDX-License-Identifier: Apache-2.0
// Of a session: what goes where. The rule (plan/fill.h) says whether a run fits and what is
// missing; the planner (plan/search.h) then says which way is the fastest.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/printable.h"
#include "cli/profile_machine.h"
#include "cli/profile_splits.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "cuda/cuda.h"
#include "plan/fill.h"
#include "plan/linear_shares.h"
#include "plan/residence.h"
#include "runtime/device_traits.h"

namespace spillway {
namespace {

// Nobody said how long prompts and answers will be: those of a talk.
constexpr int64_t kUsualPrompt = 512, kUsualAnswer = 256;
// Of free memory, what a plan may take where nobody said how much.
constexpr uint64_t kFreeTenths = 9;

// What there is of each memory. Of the host's, where nobody said how much to use, what is free.
Budgets budgets_of(const SessionOptions& options, const Device& device, const Device& host) {
  const DeviceInfo& gpu = device.info();
  if (!device.host_visible() && gpu.unified_memory) {
    const uint64_t free = static_cast<uint64_t>(host_memory().available_bytes) +
                          device.usage().total() + host.usage().total();
    const auto given = [](const std::string& text, const DeviceInfo& info) {
      return text.empty() ? 0 : static_cast<uint64_t>(info.memory_bytes);
    };
    Budgets both = share_one_memory(
        std::min(free / 10 * kFreeTenths, static_cast<uint64_t>(gpu.memory_bytes)),
        given(options.gpu_memory, gpu), given(options.placement.host_memory, host.info()));
    both.disk = options.placement.disk_bytes();
    return both;
  }
  Budgets budgets;
  budgets.host_is_limited = !options.placement.host_memory.empty();
  budgets.device = device.host_visible() ? 0 : static_cast<uint64_t>(device.info().memory_bytes);
  budgets.host = static_cast<uint64_t>(budgets.host_is_limited ? host.info().memory_bytes
                                                               : host_memory().available_bytes);
  budgets.disk = options.placement.disk_bytes();
  return budgets;
}

// A machine as a session uses it: without a GPU that does not compute, and one that does with
// memory of its own, if only by a budget.
ChosenHardware machine_of_session(const Device& device, const Device& host) {
  const bool apart = !device.host_visible();
  ChosenHardware machine = this_machine(host.info(), apart ? &device.info() : nullptr);
  Hardware& hardware = machine.hardware;
  if (hardware.unified) {
    hardware.unified = false;
    hardware.to_device = hardware.to_host = RateCurve(hardware.host.read_bytes_per_s);
  }
  return machine;
}

Workload workload_of(const ExpectedRun& run, const RunSize& size) {
  const int64_t generated =
      run.generated > 0
          ? run.generated
          : std::clamp<int64_t>(kUsualAnswer, 1, std::max<int64_t>(1, size.tokens / 2));
  const int64_t prompt =
      run.prompt > 0 ? run.prompt : std::clamp<int64_t>(size.tokens - generated, 1, kUsualPrompt);
  return {{{.count = std::max(run.requests, size.sequences),
            .prompt = std::min(prompt, std::max<int64_t>(1, size.tokens - generated)),
            .generate = std::min(generated, size.tokens)}}};
}

}  // namespace

const ChosenHardware& Session::machine() const {
  if (!machine_) machine_ = machine_of_session(*device, own_host ? *own_host : *device);
  return *machine_;
}

DeviceTraits Session::traits_within(const Budgets& budgets) const {
  DeviceTraits traits = traits_of(*device, own_host ? *own_host : *device);
  if (!device->host_visible()) {
    traits.memory_bytes = budgets.device;
    traits.host_memory_bytes = budgets.host;
  } else if (budgets.host_is_limited) {
    traits.memory_bytes = budgets.host;
  }
  return traits;
}

Prediction Session::predict_run(const Workload& workload, int64_t sequences) const {
  const RunSize size = runner_size(workload.longest(), sequences);
  return predict(machine().hardware, loaded->model, plan, needs_of(size), size, workload);
}

RunSize Session::runner_size(int64_t tokens, int64_t sequences) const {
  return {tokens, sequences, size_.micro_tokens, settings.kv_type,
          load_.access == WeightAccess::kMapped};
}

Footprint Session::needs_of(const RunSize& size) const {
  return footprint(loaded->model, plan, size, traits_within(budgets_));
}

Prediction Session::predict_run() const {
  return predict_run(workload_of(run_, size_), size_.sequences);
}

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
  // Where shares are given by options, what is left open is as the planner would have it.
  const bool open = by_hand && options.plans.empty() && !options.kept && options.cpu_linear.empty();
  if (apart && open && !settings.deterministic && placed.plan.weights.device < 1) {
    const Hardware& hardware = machine().hardware;
    const auto price = [&](const Plan& of) {
      return predict(hardware, model, of, footprint(model, of, trial.size, traits), trial.size,
                     workload_of(run, trial.size));
    };
    const Prediction alone = price(placed.plan);
    Plan shared = placed.plan;
    shared.cpu_linear = balanced_linear_shares(hardware, model, shared,
                                               footprint(model, shared, trial.size, traits).layout,
                                               trial.size.sequences, alone);
    if (!shared.cpu_linear.empty()) {
      const Plan by_gain = with_residence_by_gain(hardware, model, shared, trial.size.sequences);
      const bool fits_too =
          fits(footprint(model, by_gain, trial.size, traits), traits, trial.budgets);
      if (fits_too && price(by_gain).total_s() < kSurelyBetter * price(shared).total_s())
        shared = by_gain;
    }
    if (price(shared).total_s() < alone.total_s()) placed.plan = std::move(shared);
  }
  settle(placed, model, run, trial.budgets);
  return placed;
}

Budgets Session::careful(Budgets budgets) const {
  if (!budgets.host_is_limited) budgets.host = budgets.host / 10 * kFreeTenths;
  return budgets;
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
    for (const DeviceInfo& gpu : list_cuda_devices().devices) {
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
  const int chunk = chunk_given ? options_.compute.chunk : device->host_visible() ? 512 : 2048;
  const RunSize wanted{run.tokens, run.sequences, chunk, settings.kv_type,
                       load_.access == WeightAccess::kMapped};
  RunSize least = wanted;
  if (run.least_sequences > 0) least.sequences = run.least_sequences;
  if (!chunk_given) least.micro_tokens = kSmallestChunk;
  if (run.least_context > 0) least.tokens = std::min(run.least_context, wanted.tokens);
  const std::vector<RunSize> sizes = smaller_runs(wanted, least);
  FitTrial trial{.size = wanted, .budgets = budgets_, .compress = load_.compress};
  for (const RunSize& size : sizes) {
    trial.size = size;
    try {
      Placed placed = place(trial, run, which);
      if (auto planned = try_planned(placed, wanted, run)) placed = std::move(*planned);
      plan = std::move(placed.plan);
      size_ = placed.size;
      needs_ = std::move(placed.needs);
      if (size.micro_tokens < chunk)
        log_info("memory is short: steps of {} tokens, not {}", size.micro_tokens, chunk);
      if (size.tokens < wanted.tokens)
        log_warning("memory is short: a context of {} tokens, not {}", size.tokens, wanted.tokens);
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

void Session::describe_run() {
  plan.compress_weights = load_.compress;
  plan.kv_type = settings.kv_type;
  plan.attention_topk = settings.attention_topk;
  if (!device->host_visible() && plan.attention == AttentionPlace::kAuto && plan.kv.host > 0 &&
      !plan.cpu_attention)
    plan.cpu_attention = predict_run().cpu_attention;
  settings.host_attention = describe_host_attention(plan, *device, host());
  const RunLayout layout = footprint(loaded->model, plan, size_, traits_within(budgets_)).layout;
  if (layout.host_blocks > 0 && layout.staging_blocks < layout.sequence_blocks)
    settings.host_attention += fmt::format(", and to more than {} tokens by the CPU alone",
                                           layout.staging_blocks * kKvBlockTokens);
  settings.host_linear = describe_host_linear(plan, *device, host());
  plan.chunk = size_.micro_tokens;
  plan.context = size_.tokens;
  plan.sequences = static_cast<int>(size_.sequences);
}

std::vector<ResultSettings> Session::settings_by_other_plans() const {
  std::vector<ResultSettings> all;
  if (device->host_visible()) return all;
  for (const TierShares& kv : {TierShares{1, 0, 0}, TierShares{0, 1, 0}}) {
    Plan other = plan;
    other.kv = kv;
    other.attention = same_for_every_sequence(other);
    ResultSettings& by_other = all.emplace_back(settings);
    by_other.host_attention = describe_host_attention(other, *device, *own_host);
  }
  return all;
}

// Results may change with it, so it is only done where somebody asks for it.
void Session::measure_what_is_missing() {
  if (device->host_visible() || device->info().unified_memory) return;
  const auto path = try_default_hardware_path();
  SPW_CHECK(path.has_value(), kInvalidArgument,
            "neither XDG_CACHE_HOME nor HOME is set, so --tune has no place to keep what it "
            "measures");
  auto known = try_measured_here(host().info(), &device->info());
  if (!known) {
    log_info("--tune: this machine has not been measured yet");
    known = measure_this_machine(host(), device.get(), disk_dir, kProfileSeconds);
    write_hardware_file(*path, *known);
  }
  if (known->host.threads == host().info().threads) {
    profile_splits(host(), *device, loaded->model, options_.model, /*again=*/false, *known, *path);
  } else {
    log_warning(
        "--tune: this machine was measured with {} threads, and {} are used; nothing more "
        "is measured",
        known->host.threads, host().info().threads);
  }
  machine_.reset();
}

void Session::choose_plan(const ExpectedRun& asked, size_t which) {
  if (options_.tuning.measure) measure_what_is_missing();
  const ModelSpec& spec = loaded->model.spec;
  run_ = asked;
  which_ = which;
  if (run_.tokens == 0) run_.tokens = context_tokens(0);
  if (!has_any_context(options_.model, spec)) run_.tokens = std::min(run_.tokens, spec.max_context);
  budgets_ = budgets_of(options_, *device, host());
  // What the plan before holds is this one's, too.
  if (!budgets_.host_is_limited && !device->info().unified_memory)
    budgets_.host += host().usage().total();
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

void Session::say_what_was_refused() {
  if (refused_.empty()) return;
  log_warning("{}; went on with the next plan, within {}{} of host memory",
              std::exchange(refused_, {}),
              device->host_visible() ? "" : format_bytes(budgets_.device) + " of GPU memory and ",
              format_bytes(budgets_.host));
  say_plan();
}

void Session::report_drift(const HostLinear::Stats& stats) const {
  constexpr double kEnoughSeconds = 0.05, kFar = 1.3;
  if (stats.few_s < kEnoughSeconds) return;
  const double expected = expected_cpu_rate(
      machine().hardware, loaded->model, plan,
      static_cast<double>(std::min<int64_t>(kFewTokens, std::max<int64_t>(1, size_.sequences))));
  const double measured = static_cast<double>(stats.few_bytes) / stats.few_s;
  if (expected <= 0 || (measured < expected * kFar && expected < measured * kFar)) return;
  log_warning(
      "the CPU multiplied its rows of linear layers at {:.3g} GB/s, and the plan had {:.3g}: "
      "another division would be faster, unless something else was at work; `spillway profile`, "
      "then `spillway profile {}` measures again",
      measured / 1e9, expected / 1e9, printable(options_.model));
}

void Session::say_plan() const {
  // Where everything fits there is nothing to say, but to who asks.
  const bool shown = stderr_is_terminal() && !plan.all_on_device();
  if (!shown && log_level() > LogLevel::kInfo) return;
  const Prediction predicted = predict_run();
  const auto shares = [](const TierShares& of) {
    return fmt::format("{:.0f}/{:.0f}/{:.0f}%", of.device * 100, of.host * 100, of.disk * 100);
  };
  const std::string where =
      plan.all_on_device()
          ? fmt::format("everything on {}", device->info().name)
          : fmt::format(
                "weights {}{} and KV {} on {}/host/disk{}",
                shares(device->host_visible() ? plan.weights : placed_shares(loaded->model, plan)),
                plan.activations.device < 1
                    ? fmt::format(", activations {}", shares(plan.activations))
                    : "",
                shares(plan.kv), device->info().name,
                plan.embeddings == Tier::kHost ? ", embeddings and head on the host" : "") +
                (plan.cpu_linear.empty()
                     ? ""
                     : fmt::format("; the CPU multiplies {:.0f}% of what is not there",
                                   plan.cpu_linear.front().share * 100));
  const std::string text = fmt::format(
      "plan: {}; {} at once; {:.3g} tokens/s and a first token after {:.2g} s predicted, bound by "
      "{} ({}, {})",
      where, size_.sequences, predicted.decode_tokens_per_s, predicted.first_token_s,
      predicted.bottleneck_name(), machine().hardware.name, machine().how);
  if (shown) {
    fmt::print(stderr, "{}\n", text);
  } else {
    log_info("{}", text);
  }
}

}  // namespace spillway
