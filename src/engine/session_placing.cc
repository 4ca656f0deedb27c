// SPDX-License-Identifier: Apache-2.0
// How a session decides what goes where: it asks plan/choose_plan.h.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "engine/progress.h"
#include "engine/session.h"
#include "plan/choose_plan.h"
#include "plan/fill.h"
#include "plan/link_prices.h"

namespace spillway {
namespace {

// Seconds; of steps that generate.
constexpr double kLongestStep = 0.1;

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
  size.draft_tokens = options_.drafts.most_tokens();
  size.most_turning = most_turning(size);
  if (!adapts_turns()) size.swapped_layers = size.most_turning;
  return size;
}

int Session::most_turning(const RunSize& size) const {
  const std::optional<int> given = options_.placement.kv_turns();
  if (given == 0 || device->host_visible()) return 0;
  const Footprint needs = footprint(loaded->model, plan, size, traits_within(budgets_));
  TurnSizes turns = needs.layout.turns;
  if (given) return options_.placement.swapped_layers(turns);
  // Nothing is gained where one memory is both, or where each sequence is cut for what there is.
  if (device->info().unified_memory || turns.blocks == 0 || needs.layout.spans()) return 0;
  // What the link cannot bring in the longest of steps never takes turns; nor does it take more
  // than half of what is left of the host's memory.
  const double in_a_step = LinkPrices(machine().hardware).most_up_per_s() * kLongestStep;
  const uint64_t left =
      budgets_.host - std::min(budgets_.host, needs.host.peak_bytes + needs.host_workspace);
  const double most_bytes = std::min(in_a_step, static_cast<double>(left) / 2);
  while (turns.most + 1 < turns.layers) {
    ++turns.most;
    const double bytes = static_cast<double>(turns.most) * turns.most_blocks() *
                         static_cast<double>(needs.layout.kv.most_layer_block_bytes());
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

FitLimits Session::what_may_change(const ExpectedRun& run) const {
  const PlacementOptions& options = options_.placement;
  FitLimits limits;
  limits.shortest_tokens = run.shortest_tokens;
  limits.sequences_option = run.sequences_option;
  limits.plan_option = options.plan_options();
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

void Session::place(const ExpectedRun& run, size_t which) {
  const int usual = usual_chunk(!device->host_visible(), run.tokens);
  std::unique_ptr<Progress> progress;  // where there is anything to search
  const auto on_progress = [&](double share) {
    SPW_CHECK(services_.cancel == nullptr || !services_.cancel->load(), kCancelled,
              "interrupted while planning");
    if (!progress) progress = start_progress(services_.progress, "planning");
    progress->update(static_cast<uint64_t>(share * 100), 100, "");
  };
  PlanContext context(loaded->model, load_.compress, traits_within(budgets_),
                      [this]() -> const Hardware& { return machine().hardware; });
  PlanRequest request{.context = context,
                      .compressed = load_.compress,
                      .traits = [this](const Budgets& budgets) { return traits_within(budgets); },
                      .budgets = budgets_,
                      .run = run,
                      .kv_type = settings.kv_type,
                      .attention_topk = settings.attention_topk,
                      .chunk = options_.compute.chunk,
                      .usual_chunk = usual,
                      .draft_tokens = options_.drafts.most_tokens(),
                      .may_map = load_.access == WeightAccess::kMapped,
                      .deterministic = settings.deterministic,
                      .may_preempt = may_preempt(settings.attention_topk, settings.deterministic),
                      .on_progress = on_progress,
                      .limits = [&] { return what_may_change(run); }};
  options_.placement.constrain(request, which);
  ChosenPlan placed = spillway::choose_plan(request);
  progress.reset();
  plan = std::move(placed.plan);
  size_ = placed.size;
  needs_ = std::move(placed.needs);
  const int chunk = options_.compute.chunk > 0 ? options_.compute.chunk : usual;
  if (size_.micro_tokens < chunk)
    log_info("memory is short: steps of {} tokens, not {}", size_.micro_tokens, chunk);
  if (size_.tokens < run.tokens)
    log_warning("memory is short: a context of {} tokens, not {}", size_.tokens, run.tokens);
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
    place(run_, which);
  } catch (const Error& error) {
    // A job that goes on may have less memory than it had. Where its results would be others by
    // another plan, its journal will say so.
    if (error.code() != ErrorCode::kOutOfMemory || !options_.placement.kept) throw;
    options_.placement.kept.reset();
    place(run_, which);
  }
  describe_run();
  if (device->host_visible() && !std::exchange(warned_of_gpu_options_, true)) {
    for (const std::string& line : options_.placement.without_gpu(options_.gpu_memory))
      log_warning("{}", line);
  }
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
    place(run, which_);
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
