// SPDX-License-Identifier: Apache-2.0
#include "plan/choose_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "plan/greedy_placement.h"
#include "plan/linear_shares.h"
#include "plan/residence.h"
#include "plan/search.h"

namespace spillway {
namespace {

// Returns the average number of tokens that a sequence has when it ends, with sequences limited to
// `most` tokens.
int64_t mean_tokens(const ExpectedRun& run, int64_t most) {
  const auto answers = static_cast<int64_t>(run.answers.size());
  const int64_t sum = std::accumulate(
      run.answers.begin(), run.answers.end(), int64_t{0},
      [&](int64_t before, int64_t answer) { return before + std::min(run.prompt + answer, most); });
  return (sum + answers - 1) / answers;
}

// Returns the plan with overrides in place of a residence by gain.
Plan with_residence(const PlanRequest& request, Plan plan, bool compress, int64_t sequences) {
  if (plan.residence == Residence::kEven || request.traits(request.budgets).host_visible)
    return plan;
  return with_residence_by_gain(request.context.hardware(), request.context.model(compress), plan,
                                sequences);
}

struct ChosenPlan {
  Plan plan = {};
  bool by_hand = false;  // options or a file gave the plan
  RunSize size = {};
  Footprint needs = {};  // the footprint of the smallest run with which the work can begin
};

class Placer {
 public:
  explicit Placer(const PlanRequest& request)
      : r_(request), discrete_(!request.traits(request.budgets).host_visible) {
    wanted_ = {r_.run.tokens,
               r_.run.sequences,
               r_.chunk > 0 ? r_.chunk : r_.usual_chunk,
               r_.kv_type,
               r_.may_map,
               r_.deterministic,
               r_.attention_topk > 0,
               r_.may_preempt ? r_.run.max_concurrent : 0};
    wanted_.draft_tokens = r_.draft_tokens;
    least_ = wanted_;
    if (r_.run.least_sequences > 0) least_.sequences = r_.run.least_sequences;
    if (r_.chunk == 0) least_.micro_tokens = std::min(kSmallestChunk, wanted_.micro_tokens);
    if (r_.run.least_context > 0) least_.tokens = std::min(r_.run.least_context, wanted_.tokens);
    for (RunSize size : smaller_runs(wanted_, least_)) {
      sizes_.push_back(size);
      if (std::exchange(size.max_concurrent, 0) > size.sequences) sizes_.push_back(size);
    }
  }

  ResolvedPlan run() {
    const FitTrial asked{.size = wanted_, .budgets = r_.budgets, .compress = r_.compressed};
    if (const auto placed = try_all(asked)) return resolve_choice(*placed);
    refuse(asked);
  }

 private:
  // Tries the smallest chunk, and the one that holds all tokens of a sequence: several chunks in a
  // step need slots for whole layers, which may take more memory than one large chunk. A trial with
  // invalid options counts as one that does not fit.
  bool fits_with_some_chunk(FitTrial trial) {
    int whole = wanted_.micro_tokens;
    while (whole / 2 >= std::max<int64_t>(least_.micro_tokens, trial.size.tokens)) whole /= 2;
    for (const int chunk : {least_.micro_tokens, whole}) {
      trial.size.micro_tokens = chunk;
      try {
        if (place(trial, /*explain=*/false)) return true;
      } catch (const Error&) {
        continue;
      }
    }
    return false;
  }
  ResolvedPlan resolve_choice(const ChosenPlan& chosen) {
    const auto resolve_within = [&](const Plan& plan) {
      return resolve(r_.context, r_.compressed, plan, chosen.size, r_.traits(r_.budgets),
                     r_.budgets, r_.expansion);
    };
    Plan plan = chosen.plan;
    // The resolved plan has the CPU's share of the sequences in host memory, so that it gives the
    // same run wherever it is passed back.
    if (discrete_ && plan.attention == AttentionPlace::kAuto && plan.kv.host > 0 &&
        !plan.cpu_attention) {
      const Workload workload = workload_for(chosen.size);
      plan.cpu_attention =
          price(resolve_again(r_.context, r_.compressed, resolve_within(plan), workload.longest(),
                              chosen.size.sequences, r_.traits(r_.budgets), r_.budgets),
                workload)
              .cpu_attention;
    }
    ResolvedPlan resolved = resolve_within(completed(std::move(plan), chosen.size, r_));
    resolved.least_needs = chosen.needs;
    resolved.by_hand = chosen.by_hand;
    resolved.max_concurrent = max_concurrent_of(r_.context, r_.compressed, resolved, r_.run,
                                                r_.traits(r_.budgets), r_.budgets);
    return resolved;
  }
  Prediction price(const ResolvedPlan& of, const Workload& workload) const {
    return r_.context.price(of.plan, of.needs, of.size, workload, r_.compressed);
  }
  Footprint needs_of(const Plan& plan, const RunSize& size, const FitTrial& trial) const {
    return MemoryCheck(r_.context.weights(trial.compress), r_.traits(trial.budgets), trial.budgets)
        .needs(plan, size);
  }
  Workload workload_for(const RunSize& size) const {
    return r_.workload ? *r_.workload : workload_of(r_.run, size);
  }
  Prediction price(const Plan& plan, const RunSize& size, const FitTrial& trial) const {
    return r_.context.price(plan, needs_of(plan, size, trial), size, workload_for(size),
                            trial.compress);
  }

  // Returns the largest run that fits within the trial's budgets. Its plan is the planner's if
  // there is something to choose, else that of options or of greedy placement.
  std::optional<ChosenPlan> try_all(FitTrial trial) {
    for (const RunSize& size : sizes_) {
      trial.size = size;
      auto placed = try_greedy(trial);
      if (leaves_open(trial)) placed = around_given(std::move(placed), trial);
      if (!placed) continue;
      if (auto planned = try_planned(*placed, trial)) placed = std::move(planned);
      if (auto shared = try_shared(*placed, trial)) placed = std::move(shared);
      return placed;
    }
    return std::nullopt;
  }

  // Returns the plan by options or by greedy placement, or nullopt if it does not fit.
  std::optional<ChosenPlan> try_greedy(const FitTrial& trial) {
    try {
      return place(trial, /*explain=*/false);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      return std::nullopt;
    }
  }

  // Throws kOutOfMemory if the plan does not fit. With `explain`, the message says how much memory
  // would be enough, which takes a while to find.
  std::optional<ChosenPlan> place(const FitTrial& trial, bool explain) {
    std::optional<Plan> by_hand;
    if (!trial.greedy) by_hand = r_.fixed;
    if (trial.kv) {
      if (!by_hand) by_hand.emplace();
      by_hand->kv = *trial.kv;
    }
    ChosenPlan placed{.by_hand = by_hand.has_value(), .size = trial.size};
    if (by_hand) {
      placed.plan = *by_hand;
    } else if (discrete_ || trial.budgets.host_is_limited || !fits_host(trial)) {
      PlacedWeights& weights = r_.context.weights(trial.compress);
      const DeviceTraits traits = r_.traits(trial.budgets);
      auto filled = try_place_greedily(weights, trial.size, traits, careful(trial.budgets));
      if (!filled && !explain) return std::nullopt;
      placed.plan = filled ? std::move(*filled)
                           : place_greedily(weights, trial.size, traits, careful(trial.budgets));
    }
    GivenFields given = r_.given;
    // A trial replaces the shares that options set.
    if (trial.greedy) given.weights = given.kv = given.activations = {}, given.embeddings = {};
    if (trial.kv) given.kv = trial.kv;
    given.apply_to(placed.plan);
    placed.plan = with_residence(r_, std::move(placed.plan), trial.compress, trial.size.sequences);
    placed.size.max_concurrent = over_commit_by(placed, trial);
    // The planner completes a plan that comes from options alone.
    const bool open = by_hand && r_.by_options_alone && !r_.given.cpu_linear;
    if (discrete_ && open && !r_.deterministic && placed.plan.weights.device < 1)
      share_linears(placed, trial);
    compute_needs(placed, trial);
    return placed;
  }
  // Returns whether the host's memory holds all of the run if no option limits it. File pages do
  // not count.
  bool fits_host(const FitTrial& trial) const {
    const Footprint needs = needs_of({}, trial.size, trial);
    return needs.device.peak_bytes <= trial.budgets.host || trial.budgets.disk == 0;
  }

  // Gives the CPU its share of linear layers if that is estimated to be faster.
  void share_linears(ChosenPlan& placed, const FitTrial& trial) const {
    const Prediction alone = price(placed.plan, placed.size, trial);
    Plan shared = placed.plan;
    shared.cpu_linear = balanced_linear_shares(
        r_.context.hardware(), r_.context.model(trial.compress),
        r_.context.weights(trial.compress).homes(shared).of, shared,
        needs_of(shared, placed.size, trial).layout, placed.size.sequences, alone);
    const Prediction together = price(shared, placed.size, trial);
    if (together.total_s() < alone.total_s()) placed.plan = std::move(shared);
  }

  // Returns how many sequences may share the KV memory of the plan's (RunSize::max_concurrent). A
  // resumed job has as many as before. Returns 0, for none, if sequences do not wait for memory, or
  // if more sequences would change the processor or the partitions in which the sequences of a plan
  // by hand are attended to.
  int64_t over_commit_by(const ChosenPlan& placed, const FitTrial& trial) const {
    const Plan& by = placed.plan;
    if (placed.size.max_concurrent == 0 || by.schedule != ScheduleKind::kContinuous) return 0;
    if (!placed.by_hand) return placed.size.max_concurrent;
    if (by.max_concurrent) return *by.max_concurrent;
    if (r_.kept_max_concurrent) return *r_.kept_max_concurrent;
    RunSize whole = placed.size;
    whole.max_concurrent = 0;
    const RunLayout with = needs_of(by, placed.size, trial).layout,
                    without = needs_of(by, whole, trial).layout;
    const auto all = [&](auto&& is) { return is(with) && is(without); };
    const bool alike =
        with.blocks_away() == 0 || with.staging_blocks == without.staging_blocks ||
        all([](const RunLayout& of) { return of.staging_blocks >= of.sequence_blocks; }) ||
        all([](const RunLayout& of) {
          return of.fixed_blocks > 0 && of.staging_blocks >= of.least_staging();
        });
    return alike && with.partitioned == without.partitioned ? placed.size.max_concurrent : 0;
  }

  void compute_needs(ChosenPlan& placed, const FitTrial& trial) {
    if (r_.deterministic && placed.plan.attention == AttentionPlace::kAuto)
      placed.plan.attention = same_for_every_sequence(placed.plan);
    // The split of linear layers may not depend on the other sequences either: the share for the
    // most tokens is used for all steps.
    if (r_.deterministic && !placed.plan.cpu_linear.empty()) {
      CpuLinearShare last = placed.plan.cpu_linear.back();
      if (last.tokens < placed.size.micro_tokens) last = {};
      last.tokens = kAnyTokens;
      placed.plan.cpu_linear = {last};
    }
    RunSize least = placed.size;
    if (r_.run.least_tokens > 0) least.tokens = std::min(least.tokens, r_.run.least_tokens);
    if (r_.run.least_sequences > 0)
      least.sequences = std::min(least.sequences, r_.run.least_sequences);
    placed.needs = needs_of(placed.plan, least, trial);
    require_fit(placed.needs, discrete_, trial.budgets);
  }

  // Searches for the fastest plan of a run of `size`, with the fields that options set.
  std::optional<ChosenPlan> try_search(const RunSize& size, const FitTrial& trial) {
    const DeviceTraits traits = r_.traits(trial.budgets);
    auto found = search_plans(
        {.hardware = r_.context.hardware(),
         .model = r_.context.model(trial.compress),
         .traits = traits,
         .workload = workload_for(size),
         .budgets = careful(trial.budgets),
         .size = size,
         .attention_topk = r_.attention_topk,
         .smallest_chunk = least_.micro_tokens,
         .objective = r_.objective,
         .most_sequences = size.sequences,
         .least_sequences = r_.run.least_sequences > 0 ? r_.run.least_sequences : size.sequences,
         .coarse = r_.coarse,
         .max_latency_s = r_.max_latency_s,
         .max_first_token_s = r_.max_first_token_s,
         .given = r_.given,
         .same_for_every_sequence = r_.deterministic,
         .steps = &r_.context.steps(trial.compress),
         .on_progress = r_.on_progress});
    if (found.empty()) return std::nullopt;
    ChosenPlan placed{.plan = std::move(found.front().plan), .size = found.front().size};
    // The plan was priced for the sequences for which it has room. All sequences that share that
    // room are divided into the same number of micro-batches.
    if (placed.plan.micro_batch > 0 && !r_.given.micro_batch)
      placed.plan.micro_batch = static_cast<int>(std::min<int64_t>(
          placed.size.micro_tokens,
          (placed.plan.micro_batch * placed.size.max_running() + placed.size.sequences - 1) /
              placed.size.sequences));
    try {
      compute_needs(placed, trial);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      return std::nullopt;
    }
    return placed;
  }

  // Searches for a plan for as many of the wanted sequences as there is room for. Returns nullopt
  // if there is nothing to choose, or no plan can be better.
  std::optional<ChosenPlan> try_planned(const ChosenPlan& greedy, const FitTrial& trial) {
    const bool finds = r_.run.finds_sequences;
    // Nothing is faster than everything on the device with all of the sequences running
    // concurrently.
    const bool all_there =
        greedy.plan.all_on_device() && greedy.size.sequences == wanted_.sequences;
    if (greedy.by_hand || (all_there && !finds)) return std::nullopt;
    if (!discrete_ && !trial.budgets.host_is_limited && greedy.plan.all_on_device() && !finds)
      return std::nullopt;
    RunSize size = greedy.size;
    size.sequences = wanted_.sequences;
    size.micro_tokens = wanted_.micro_tokens;
    return try_search(size, trial);
  }

  // Returns whether options fix a part of the plan, so that the search finds the rest around it.
  bool leaves_open(const FitTrial& trial) const {
    return r_.fixed && r_.by_options_alone && !trial.greedy && !trial.kv;
  }

  // Searches for the settings that options leave open. `resident` is the plan that has all of them
  // on the device, or null if that does not fit; it is returned if the search finds nothing better.
  // Nothing is searched if a search could move nothing, or for fewer sequences than wanted where
  // `resident` does not fit.
  std::optional<ChosenPlan> around_given(std::optional<ChosenPlan> resident,
                                         const FitTrial& trial) {
    const bool is_first = trial.size.tokens == sizes_.front().tokens &&
                          trial.size.sequences == sizes_.front().sequences;
    if (resident ? resident->plan.all_on_device() : !is_first) return resident;
    RunSize size = resident ? resident->size : wanted_;
    if (!resident) size.max_concurrent = 0;
    auto around = try_search(size, trial);
    if (!around) return resident;
    around->by_hand = true;
    if (!resident) return around;
    if (around->size.sequences < resident->size.sequences ||
        price(around->plan, around->size, trial).total_s() >=
            kBetter * price(resident->plan, resident->size, trial).total_s())
      return resident;
    return around;
  }

  // Returns a plan that keeps everything on the device, with room for as many whole sequences as
  // fit: all expected sequences share that room if answers are as long as predicted. Returns
  // nullopt if that gains nothing, if there is too little room, or if sequences may not wait for
  // each other.
  std::optional<ChosenPlan> try_shared(const ChosenPlan& whole, const FitTrial& trial) {
    const ExpectedRun& run = r_.run;
    if (run.max_concurrent < 2 || run.answers.empty() || whole.by_hand || !discrete_ ||
        !r_.may_preempt)
      return std::nullopt;
    // Sharing gains nothing if everything is on the device already.
    if (whole.plan.all_on_device() && whole.size.sequences >= wanted_.sequences)
      return std::nullopt;
    ChosenPlan shared{.plan = {}, .size = wanted_};
    r_.given.apply_to(shared.plan);
    if (shared.plan.schedule != ScheduleKind::kContinuous || !shared.plan.all_on_device())
      return std::nullopt;
    const auto has_room = [&](int64_t sequences) {
      RunSize size = wanted_;
      size.sequences = sequences;
      return fit_of(needs_of(shared.plan, size, trial), discrete_, careful(trial.budgets)).fits();
    };
    const int64_t tokens = mean_tokens(run, wanted_.tokens) * run.max_concurrent;
    int64_t least = std::max<int64_t>(1, (tokens + wanted_.tokens - 1) / wanted_.tokens);
    if (least >= wanted_.sequences || !has_room(least)) return std::nullopt;
    // Finds the most sequences for which there is room, so that little is lost if answers are
    // longer than predicted.
    for (int64_t most = wanted_.sequences; least < most;) {
      const int64_t middle = most - (most - least) / 2;
      if (has_room(middle)) {
        least = middle;
      } else {
        most = middle - 1;
      }
    }
    shared.size.sequences = least;
    compute_needs(shared, trial);
    return shared;
  }

  // Returns the estimated tokens per second of a trial that may have any of the run's sizes; 0 if
  // none fits.
  double speed_of(const FitTrial& trial) {
    const auto placed = try_all(trial);
    if (!placed) return 0;
    return price(placed->plan, placed->size, trial).generated_tokens_per_s;
  }

  [[noreturn]] void refuse(FitTrial trial) {
    trial.size = sizes_.back();
    try {
      place(trial, /*explain=*/true);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory || !r_.limits) throw;
      // A search for few sequences is fast.
      PlanRequest fewer = r_;
      if (r_.run.least_sequences > 0) fewer.run.sequences = r_.run.least_sequences;
      Placer few(fewer);
      fail(ErrorCode::kOutOfMemory, "{}; {}", error.what(),
           fit_suggestions(trial, r_.limits(),
                           [this](const FitTrial& other) { return fits_with_some_chunk(other); },
                           {.quick = [&](const FitTrial& other) { return few.speed_of(other); },
                            .planned = [this](const FitTrial& other) { return speed_of(other); }}));
    }
    fail(ErrorCode::kInternal, "a plan that was refused fits");
  }

  const PlanRequest& r_;
  bool discrete_;
  RunSize wanted_, least_;
  std::vector<RunSize> sizes_;  // runs to try, in this order
};

}  // namespace

ResolvedPlan choose_plan(const PlanRequest& request) { return Placer(request).run(); }

Plan plan_as_given(const PlanRequest& request, const RunSize& size) {
  Plan plan = request.fixed.value_or(Plan());
  request.given.apply_to(plan);
  plan.attention_topk = request.attention_topk;
  return with_residence(request, std::move(plan), request.compressed, size.sequences);
}

}  // namespace spillway
