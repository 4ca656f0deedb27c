// SPDX-License-Identifier: Apache-2.0
#include "plan/resolved_plan.h"

#include <algorithm>
#include <utility>

#include "plan/link_prices.h"
#include "plan/memory_fit.h"
#include "plan/placed_weights.h"

namespace spillway {
namespace {

ResolvedPlan resolve_sized(PlacedWeights& weights, const Plan& plan, const RunSize& size,
                           const DeviceTraits& traits) {
  ResolvedPlan resolved{.plan = plan, .size = size};
  resolved.needs = footprint(weights, plan, size, traits);
  resolved.homes = weights.homes(plan).of;
  resolved.streaming =
      streaming_schedules(weights.model(), resolved.homes, plan.shared_linear(traits.host_visible),
                          resolved.needs.layout.slots);
  return resolved;
}

}  // namespace

Plan completed(Plan plan, const RunSize& size, const PlanRequest& request) {
  plan.compress_weights = request.compressed;
  plan.kv_type = size.kv_type;
  plan.attention_topk = request.attention_topk;
  plan.deterministic = request.deterministic;
  plan.kv_expansion = request.expansion;
  plan.lookup_drafts = request.lookup_drafts;
  // The free memory of a host that is not limited changes from run to run, so it is no limit.
  const Budgets& budgets = request.budgets;
  PlanMemory& memory = plan.memory.emplace();
  if (budgets.device > 0) memory.device = budgets.device;
  if (budgets.host_is_limited) memory.host = budgets.host;
  memory.disk = budgets.disk;
  plan.chunk = size.micro_tokens;
  plan.context = size.tokens;
  plan.sequences = static_cast<int>(size.sequences);
  plan.max_concurrent.reset();
  if (size.max_concurrent > 0) plan.max_concurrent = static_cast<int>(size.max_concurrent);
  return plan;
}

ResolvedPlan resolve(const Model& model, const Plan& plan, const RunSize& size,
                     const DeviceTraits& traits) {
  PlacedWeights weights(model, traits);
  return resolve_sized(weights, plan, size, traits);
}

ResolvedPlan resolve(PlanContext& context, bool compress, const Plan& plan, const RunSize& size,
                     const DeviceTraits& traits, const Budgets& budgets,
                     const KvExpansion& expansion) {
  PlacedWeights& weights = context.weights(compress);
  RunSize sized = size;
  sized.most_swapped = sized.swapped_layers = 0;
  ResolvedPlan resolved = resolve_sized(weights, plan, sized, traits);
  if (!traits.host_visible && expansion.layers != 0) {
    if (expansion.adapts()) {
      sized.most_swapped = most_swapped_layers(resolved.needs, budgets,
                                               LinkPrices(context.hardware()).most_up_per_s());
    } else {
      sized.most_swapped = sized.swapped_layers =
          requested_swapped_layers(expansion, resolved.needs.layout.swap_sizes);
    }
    if (sized.most_swapped > 0) resolved = resolve_sized(weights, plan, sized, traits);
  }
  resolved.expansion = expansion;
  return resolved;
}

ResolvedPlan resolve_again(PlanContext& context, bool compress, const ResolvedPlan& resolved,
                           int64_t tokens, int64_t sequences, const DeviceTraits& traits,
                           const Budgets& budgets) {
  RunSize size = resolved.size;
  size.tokens = tokens;
  size.sequences = sequences;
  ResolvedPlan again =
      resolve(context, compress, resolved.plan, size, traits, budgets, resolved.expansion);
  again.least_needs = resolved.least_needs;
  again.max_concurrent = resolved.max_concurrent;
  again.by_hand = resolved.by_hand;
  return again;
}

MaxConcurrent max_concurrent_of(PlanContext& context, bool compress, const ResolvedPlan& resolved,
                                const ExpectedRun& run, const DeviceTraits& traits,
                                const Budgets& budgets) {
  const int64_t planned = resolved.size.sequences;
  const auto most_that_fit = [&] {
    if (resolved.layout().blocks_away() > 0) return planned;
    // The capacity for KV is decided; the rows of logits of all sequences must fit in addition.
    int64_t most = std::max({planned, run.sequences, run.max_concurrent});
    const auto fits = [&] {
      RunSize size = resolved.size;
      size.max_concurrent = most;
      const ResolvedPlan more =
          resolve(context, compress, resolved.plan, size, traits, budgets, resolved.expansion);
      return fit_of(more.needs, !traits.host_visible, budgets).fits();
    };
    while (most > planned && !fits()) most = planned + (most - planned) / 2;
    return most;
  };
  MaxConcurrent all{.full_reservation = planned, .over_commit = planned};
  const bool expands = resolved.expansion.layers != 0 && !traits.host_visible;
  if (expands) all.full_reservation = most_that_fit();
  // A plan may have been made for more sequences than are requested now.
  all.over_commit =
      resolved.size.max_concurrent > 0
          ? std::min(resolved.size.max_running(), std::max(planned, run.max_concurrent))
      : expands ? all.full_reservation
                : most_that_fit();
  return all;
}

}  // namespace spillway
