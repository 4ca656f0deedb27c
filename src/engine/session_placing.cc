// SPDX-License-Identifier: Apache-2.0
// Part of Session: plans the placement, by plan/choose_plan.h.
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
#include "plan/greedy_placement.h"

namespace spillway {
PlanContext& Session::context() const {
  if (!context_)
    context_ =
        std::make_unique<PlanContext>(loaded->model, load_.compress, traits_within(budgets_),
                                      [this]() -> const Hardware& { return machine().hardware; });
  return *context_;
}

Prediction Session::predict_run(const Workload& workload, int64_t sequences) const {
  const ResolvedPlan of = resolved_for(workload.longest(), sequences);
  return context().price(of.plan, of.needs, of.size, workload, load_.compress);
}

ResolvedPlan Session::resolved_for(int64_t tokens, int64_t sequences) const {
  const RunSize& size = resolved_.size;
  if (tokens == size.tokens && sequences == size.sequences) return resolved_;
  return resolve_again(context(), load_.compress, resolved_, tokens, sequences,
                       traits_within(budgets_), budgets_);
}

Prediction Session::predict_run() const {
  return predict_run(expected_workload(), resolved_.size.sequences);
}

Workload Session::expected_workload() const { return workload_of(run_, resolved_.size); }

FitLimits Session::fit_limits(const ExpectedRun& run) const {
  const PlacementOptions& options = options_.placement;
  FitLimits limits;
  limits.shortest_tokens = run.shortest_tokens;
  limits.sequences_option = run.sequences_option;
  limits.plan_option = options.plan_options();
  limits.compressible = !load_.compress;
  limits.has_device = !device->host_visible();
  // Advice cannot raise a budget that no option limits.
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
  std::unique_ptr<Progress> progress;  // made once a search reports its progress
  const auto on_progress = [&](double share) {
    SPW_CHECK(services_.cancel == nullptr || !services_.cancel->load(), kCancelled,
              "interrupted while planning");
    if (!progress) progress = start_progress(services_.progress, "planning");
    progress->update(static_cast<uint64_t>(share * 100), 100, "");
  };
  context_.reset();  // the machine may have been measured since
  PlanRequest request{.context = context(),
                      .compressed = load_.compress,
                      .traits = [this](const Budgets& budgets) { return traits_within(budgets); },
                      .budgets = budgets_,
                      .run = run,
                      .kv_type = settings.kv_type,
                      .attention_topk = settings.attention_topk,
                      .chunk = options_.compute.chunk,
                      .usual_chunk = usual,
                      .draft_tokens = options_.drafts.most_tokens(),
                      .expansion = options_.placement.expansion(),
                      .lookup_drafts = options_.drafts.kind == DraftKind::kLookup,
                      .may_map = load_.access == WeightAccess::kMapped,
                      .deterministic = settings.deterministic,
                      .may_preempt = may_preempt(settings.attention_topk, settings.deterministic),
                      .on_progress = on_progress,
                      .limits = [&] { return fit_limits(run); }};
  options_.placement.constrain(request, which);
  // A memory that is both the host's and the device's gains nothing by moving KV within it.
  if (request.expansion.adapts() && device->info().unified_memory) request.expansion = {};
  ResolvedPlan chosen = spillway::choose_plan(request);
  progress.reset();
  context_.reset();  // its caches hold thousands of trials
  resolved_ = std::move(chosen);
  const RunSize& size = resolved_.size;
  const int chunk = options_.compute.chunk > 0 ? options_.compute.chunk : usual;
  if (size.micro_tokens < chunk)
    log_info("memory is short: steps of {} tokens, not {}", size.micro_tokens, chunk);
  if (size.tokens < run.tokens)
    log_warning("memory is short: a context of {} tokens, not {}", size.tokens, run.tokens);
}

void Session::choose_plan(const ExpectedRun& asked, size_t which) {
  if (options_.tuning.measure) measure_missing();
  const ModelSpec& spec = loaded->model.spec;
  run_ = asked;
  which_ = which;
  if (run_.tokens == 0) run_.tokens = context_tokens(0);
  if (!has_any_context(options_.model, spec)) run_.tokens = std::min(run_.tokens, spec.max_context);
  budgets_ = budgets_now();
  if (const auto most = options_.placement.memory_of_plan(which))
    budgets_ = within(budgets_, *most);
  try {
    place(run_, which);
  } catch (const Error& error) {
    // A resumed job may have less memory than before. If another plan changes its results, the
    // check of its journal says so.
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
  const auto before = std::tuple(resolved_, budgets_, settings);
  ExpectedRun run = run_;
  run.sequences = resolved_.size.sequences;
  run.tokens = resolved_.size.tokens;
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
    // There is no other plan, and the first error is the better message.
  }
  // A job's identity includes these settings, and may be fixed by now.
  if (!placed || (!same_results && run_.results_are_fixed)) {
    std::tie(resolved_, budgets_, settings) = before;
    return false;
  }
  refused_ = refused.what();
  return true;
}

}  // namespace spillway
