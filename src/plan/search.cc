// SPDX-License-Identifier: Apache-2.0
#include "plan/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "plan/greedy_placement.h"
#include "plan/linear_shares.h"
#include "plan/memory_fit.h"
#include "plan/placed_weights.h"
#include "plan/plan_shares.h"
#include "plan/search_space.h"
#include "plan/share_fitting.h"
#include "plan/share_program.h"

namespace spillway {
namespace {

// The number of candidates with the same number of sequences that are simulated, and the number of
// those that are improved.
constexpr size_t kSimulated = 16, kImproved = 3;
// The same for a coarse search.
constexpr size_t kCoarselySimulated = 6, kCoarselyImproved = 1;
// Improvement by small changes of shares gains little. A plan whose time is worse than the best
// one's by this factor is not simulated (by the lower bound of its busiest worker), or not improved
// (by the simulator).
constexpr double kWorthSimulating = 1.05, kWorthImproving = 1.1;
// Fewer sequences are not tried once the best plan for a number of them is worse by this factor
// than the best for more. Very few are tried in any case: they may need so little memory that all
// weights are on the device.
constexpr double kMuchWorse = 2;
constexpr int64_t kVeryFew = 4;
// The first change of a share by which a plan is improved.
constexpr double kFirstStep = 0.05;
// Hidden states above this fraction of the device's budget may be worth offloading.
constexpr double kManyActivations = 0.01;
constexpr double kNever = std::numeric_limits<double>::infinity();

// Plans for one number of sequences with one concession, priced by sums, the best first.
struct Candidates {
  std::vector<FoundPlan> plans = {};
  double best = kNever;   // the best plan's score
  double bound = kNever;  // a lower bound of all of their scores
};

}  // namespace

class PlanSearch::Impl {
 public:
  explicit Impl(const SearchRequest& request)
      : r_(request),
        discrete_(request.hardware.has_device()),
        shares_(request),
        own_(request.steps ? nullptr : std::make_unique<OwnSteps>(request)),
        steps_(own_ ? own_->steps : *request.steps),
        weights_(steps_.weights()),
        predictor_(steps_, request.workload),
        memory_(weights_, request.traits, request.budgets),
        program_(request, memory_, predictor_),
        space_(request),
        fitting_(request, memory_) {}

  std::vector<FoundPlan> find(int64_t least_sequences, int64_t most_sequences, size_t most) {
    found_.clear();
    best_ = kNever;
    std::set<int64_t> tried = space_.counts(least_sequences, most_sequences);
    search_counts(tried);
    // The best number may be between two that were tried.
    for (int round = 0; round < kRounds && best_ < kNever && !r_.coarse; ++round) {
      const std::set<int64_t> more = SearchSpace::between(tried, best_sequences_);
      if (more.empty()) break;
      search_counts(more);
      tried.insert(more.begin(), more.end());
    }
    sort(found_);
    if (found_.size() > most) found_.resize(most);
    return std::move(found_);
  }

 private:
  static constexpr int kRounds = 2;

  void sort(std::vector<FoundPlan>& plans) const {
    std::ranges::stable_sort(plans, {}, [&](const FoundPlan& plan) { return score(plan); });
  }
  void report(double done) const {
    if (r_.on_progress) r_.on_progress(std::min(1.0, done));
  }

  void search_counts(const std::set<int64_t>& counts) {
    std::vector<const Candidates*> all;
    double done = 0;
    const auto step = 0.5 / static_cast<double>(counts.size());
    double best = kNever;
    // Returns the best score of the candidates, or nothing if nothing fits.
    const auto try_count = [&](int64_t sequences) -> std::optional<double> {
      const auto [known, added] = candidates_.try_emplace(sequences);
      if (added) known->second = candidates_for(sequences);
      report(done += step);
      if (known->second.empty()) return std::nullopt;
      double score = kNever;
      for (const Candidates& of : known->second) {
        all.push_back(&of);
        score = std::min(score, of.best);
      }
      best = std::min(best, score);
      return score;
    };
    const auto first = the_most_that_surely_fit(counts);
    for (auto more = first; more != counts.end() && *more < 2 * least_too_many_; ++more)
      if (!try_count(*more)) least_too_many_ = std::min(least_too_many_, *more);
    bool slower = false;
    for (auto fewer = first; fewer != counts.begin();) {
      if (*--fewer > kVeryFew && slower) continue;
      const auto score = try_count(*fewer);
      slower = slower || (score && *score > kMuchWorse * best);
    }
    std::ranges::stable_sort(all, {}, [](const Candidates* of) { return of->best; });
    for (const Candidates* candidates : all) {
      refine(*candidates);
      report(done += 0.5 / static_cast<double>(all.size()));
    }
  }

  // Returns the largest number for which greedy placement finds room, or the first one. The linear
  // program may find room for more.
  std::set<int64_t>::const_iterator the_most_that_surely_fit(const std::set<int64_t>& counts) {
    const std::vector<int64_t> order(counts.begin(), counts.end());
    const auto too_many = std::ranges::partition_point(order, [&](int64_t sequences) {
      return try_greedy(sequences, r_.smallest_chunk, r_.given.micro_batch.value_or(0)).has_value();
    });
    return counts.find(too_many == order.begin() ? order.front() : *std::prev(too_many));
  }

  // Returns candidates with more and more concessions, which cost time and free memory, as long as
  // the best plan gets better. Greedy placement makes concessions of its own, including some that
  // the linear program does not know.
  std::vector<Candidates> candidates_for(int64_t sequences) {
    std::vector<Candidates> all;
    const int micro_batch = r_.given.micro_batch.value_or(0);
    if (auto greedy = try_greedy(sequences, r_.size.micro_tokens, micro_batch))
      all.push_back({.plans = {std::move(*greedy)}});
    double solved = kNever;  // the best score of the linear program's plans
    std::vector<int> micro_batches = space_.micro_batches_of(sequences);
    for (const Concession& concession : space_.concessions()) {
      std::vector<FoundPlan> found = try_concession(sequences, concession, micro_batches);
      const bool any = !found.empty();
      if (!any && solved == kNever && concession.chunk < r_.size.micro_tokens) {
        if (auto greedy = try_greedy(sequences, concession.chunk, micro_batch))
          found.push_back(std::move(*greedy));
      }
      if (found.empty()) continue;
      sort(found);
      all.push_back({.plans = std::move(found)});
      if (!any) continue;
      const FoundPlan& best = all.back().plans.front();
      if (score(best) >= kBetter * solved || best.plan.all_on_device()) break;
      solved = score(best);
      // The best plan shows which micro-batches to try with the next concession.
      if (micro_batches.size() > 2) micro_batches = {micro_batch, best.plan.micro_batch};
    }
    for (Candidates& of : all) {
      FoundPlan better = of.plans.front();
      improve(better, PriceBy::kSums);
      of.plans.push_back(std::move(better));
      if (shares_linears()) add_shared_linears(of);
      sort(of.plans);
      of.best = score(of.plans.front());
      for (const FoundPlan& plan : of.plans) of.bound = std::min(of.bound, bound(plan));
    }
    return all;
  }
  // The CPU's share of linear layers may decide which number of sequences is the best.
  void add_shared_linears(Candidates& all) {
    // The gain depends on how many tokens are multiplied together and on whether the CPU attends,
    // so the best plan for each of these combinations is tried.
    std::set<std::pair<int, AttentionPlace>> tried;
    for (size_t i = 0, count = all.plans.size(); i < count; ++i) {
      const Plan& plan = all.plans[i].plan;
      if (!tried.emplace(plan.micro_batch, plan.attention).second) continue;
      for (FoundPlan& shared : with_shared_linears(all.plans[i], PriceBy::kSums)) {
        improve(shared, PriceBy::kSums);
        all.plans.push_back(std::move(shared));
      }
    }
  }

  // Returns the score; lower is better. Plans that break a limit score worse than all plans that do
  // not.
  double score(const FoundPlan& plan) const { return score(plan.predicted); }
  double score(const Prediction& p) const {
    double late = 0;
    if (r_.max_latency_s) late += std::max(0.0, p.latency_s / *r_.max_latency_s - 1);
    if (r_.max_first_token_s) late += std::max(0.0, p.first_token_s / *r_.max_first_token_s - 1);
    const double seconds = r_.objective == Objective::kLatency ? p.latency_s : p.total_s();
    return late > 0 ? 1e12 * (1 + late) : seconds;
  }

  void price(FoundPlan& plan, PriceBy by) {
    plan.predicted = predictor_.predict(plan.plan, plan.needs, plan.size, by);
  }
  std::vector<FoundPlan> try_concession(int64_t sequences, const Concession& concession,
                                        const std::vector<int>& micro_batches) {
    std::vector<FoundPlan> found;
    for (const int micro_batch : micro_batches) {
      FoundPlan all = space_.plan_on_device(sequences, concession.chunk, micro_batch);
      all.plan.embeddings = concession.embeddings;
      if (fitting_.update_needs(all)) {  // everything is on the device, and nothing is faster
        price(all, PriceBy::kSums);
        found.push_back(std::move(all));
        return found;
      }
      const size_t before = found.size();
      try_places(all, found);
      // Micro-batches only help if KV or hidden states are moved.
      const bool moves = std::any_of(
          found.begin() + static_cast<ptrdiff_t>(before), found.end(), [](const FoundPlan& plan) {
            return plan.plan.kv.device < 1 || plan.plan.activations.device < 1;
          });
      if (found.size() > before && !moves) break;
    }
    return found;
  }
  void try_places(const FoundPlan& all, std::vector<FoundPlan>& found) {
    bool any_place = false;  // all KV is on the device, so the place of attention does not matter
    for (const AttentionPlace place : space_.places()) {
      if (any_place && place != space_.places().front()) break;
      // Micro-batches do not help the CPU's attention: the device waits for the CPU's rows in each
      // of them.
      if (place == AttentionPlace::kCpu && all.plan.micro_batch > 0 && space_.places().size() > 1 &&
          !r_.given.micro_batch)
        continue;
      FoundPlan plan = all;
      plan.plan.attention = place;
      // Without a GPU the computing thread itself waits for pages on disk, so weights are moved to
      // disk before KV.
      const bool solved = (!discrete_ && program_.try_shares(plan, /*kv_on_disk=*/false)) ||
                          program_.try_shares(plan, r_.budgets.disk > 0);
      const bool fitted = solved && fitting_.make_fit(plan);
      if (fitted) {
        any_place = plan.plan.kv.device >= 1;
        price(plan, PriceBy::kSums);
        found.push_back(plan);
      }
      if (!discrete_ || r_.given.activations || (fitted && has_few_hidden_states(plan))) continue;
      FoundPlan away = all;
      away.plan.attention = place;
      away.plan.activations = {0, 1, 0};
      if (!program_.try_shares(away, r_.budgets.disk > 0) || !fitting_.make_fit(away)) continue;
      price(away, PriceBy::kSums);
      if (!fitted || score(away) < score(plan)) found.push_back(std::move(away));
    }
  }
  // Returns whether hidden states between layers take so little memory that it does not matter
  // where they are.
  bool has_few_hidden_states(const FoundPlan& plan) const {
    const double bytes = 4.0 * static_cast<double>(r_.model.spec.hidden) *
                         static_cast<double>(plan.needs.layout.max_tokens);
    return bytes < kManyActivations * static_cast<double>(r_.budgets.device);
  }
  // Greedy placement is a candidate too, so no result is worse than it.
  std::optional<FoundPlan> try_greedy(int64_t sequences, int chunk, int micro_batch) {
    FoundPlan plan = space_.plan_on_device(sequences, chunk, micro_batch);
    const auto greedy = try_place_greedily(weights_, plan.size, r_.traits, r_.budgets);
    if (!greedy) return std::nullopt;
    plan.plan.weights = greedy->weights;
    plan.plan.kv = greedy->kv;
    plan.plan.embeddings = greedy->embeddings;
    plan.plan.activations = greedy->activations;
    r_.given.apply_to(plan.plan);
    if (r_.same_for_every_sequence && plan.plan.attention == AttentionPlace::kAuto)
      plan.plan.attention = same_for_every_sequence(plan.plan);
    if (!fitting_.update_needs(plan)) return std::nullopt;
    price(plan, PriceBy::kSums);
    return plan;
  }

  // Simulates and improves the plans that may be the best.
  void refine(const Candidates& candidates) {
    if (candidates.bound > kWorthSimulating * best_) return;
    std::vector<FoundPlan> found;
    for (const FoundPlan& plan : candidates.plans) {
      if (found.size() == (r_.coarse ? kCoarselySimulated : kSimulated)) break;
      if (bound(plan) <= kWorthSimulating * best_) simulate(found.emplace_back(plan));
    }
    if (shares_linears()) {
      for (size_t i = 0, count = found.size(); i < count; ++i) {
        for (FoundPlan& shared : with_shared_linears(found[i], PriceBy::kSimulator)) {
          note(shared);
          found.push_back(std::move(shared));
        }
      }
    }
    sort(found);
    const size_t improved = r_.coarse ? kCoarselyImproved : kImproved;
    for (size_t i = 0; i < std::min(found.size(), improved); ++i) {
      if (score(found[i]) > kWorthImproving * best_) break;
      improve(found[i], PriceBy::kSimulator);
      note(found[i]);
    }
    for (FoundPlan& plan : found) found_.push_back(std::move(plan));
  }
  void simulate(FoundPlan& plan) {
    price(plan, PriceBy::kSimulator);
    note(plan);
  }
  void note(const FoundPlan& plan) {
    if (score(plan) >= best_) return;
    best_ = score(plan);
    best_sequences_ = plan.size.sequences;
  }
  // Returns a lower bound of the plan's score: the time of its busiest worker.
  double bound(const FoundPlan& plan) {
    return score(predictor_.predict(plan.plan, plan.needs, plan.size, PriceBy::kBusiest));
  }

  // Returns whether the CPU may multiply a share of linear layers. The processor decides a result's
  // bits, so it may not if results must not depend on the other sequences.
  bool shares_linears() const {
    return discrete_ && !r_.same_for_every_sequence && !r_.given.cpu_linear;
  }
  // Returns variants of a plan in which the CPU shares the linear layers of all steps, or only of
  // decoding, if they are faster than the plan.
  std::vector<FoundPlan> with_shared_linears(const FoundPlan& plan, PriceBy by) {
    std::vector<FoundPlan> found;
    if (plan.plan.weights.device >= 1 || !plan.plan.cpu_linear.empty()) return found;
    FoundPlan shared = plan;
    shared.plan.cpu_linear =
        balanced_linear_shares(r_.hardware, r_.model, weights_.homes(shared.plan).of, shared.plan,
                               shared.needs.layout, shared.size.sequences, shared.predicted);
    while (!shared.plan.cpu_linear.empty()) {
      // Host memory may be full of weights, and the CPU's rows need some of it.
      if (fitting_.update_needs(shared) || (!r_.given.weights && fitting_.fit_host(shared))) {
        price(shared, by);
        if (score(shared) < score(plan)) found.push_back(shared);
      }
      shared.plan.cpu_linear.resize(shared.plan.cpu_linear.size() > 1 ? 1 : 0);
    }
    return found;
  }

  // Improves a plan by changing its shares step by step. By sums the steps are large, because they
  // only show what is worth simulating, and in a coarse search they are larger.
  void improve(FoundPlan& found, PriceBy by) {
    if (found.plan.all_on_device()) return;
    const double least = r_.coarse ? kFirstStep : by == PriceBy::kSums ? 0.01 : 0.002;
    for (double step = kFirstStep; step > 0.9 * least; step /= 5) {
      for (bool better = true; better;) {
        better = false;
        std::vector<FoundPlan> trials;
        for (const double way : {step, -step}) add_neighbours(found, way, trials);
        for (FoundPlan& trial : trials) {
          if (!fitting_.update_needs(trial) || bound(trial) >= score(found) * kBetter) continue;
          price(trial, by);
          if (score(trial) < score(found) * kBetter) {
            found = std::move(trial);
            better = true;
          }
        }
      }
    }
  }
  // Adds plans in each of which one share is larger by `way`, or smaller if it is negative.
  void add_neighbours(const FoundPlan& found, double way, std::vector<FoundPlan>& trials) const {
    const auto at_least = [&](double least) {
      return std::copysign(std::max(std::fabs(way), least), way);
    };
    const TierShares& now = found.plan.weights;
    if (!r_.given.weights) {
      FoundPlan weights = found;
      shares_.set_weights(weights.plan, (discrete_ ? now.device : now.host) + way,
                          now.host - (discrete_ ? way : 0));
      trials.push_back(std::move(weights));
    }
    if (discrete_ && !r_.given.kv && !shares_.kv_has_one_home(found.plan)) {
      FoundPlan kv = found;
      const double more = at_least(1 / PlanShares::kv_partitions(found));
      shares_.set_kv(kv, std::max(0.0, found.plan.kv.device + more),
                     std::max(0.0, found.plan.kv.host - more));
      trials.push_back(std::move(kv));
    }
    if (found.plan.cpu_attention && !r_.given.cpu_attention) {
      FoundPlan attention = found;
      const double more =
          at_least(1 / (found.plan.kv.host * static_cast<double>(found.size.sequences)));
      attention.plan.cpu_attention =
          PlanShares::whole_sequences(*found.plan.cpu_attention + more, found);
      trials.push_back(std::move(attention));
    }
    if (!found.plan.cpu_linear.empty() && !r_.given.cpu_linear) {
      FoundPlan linear = found;
      linear.plan.cpu_linear.front().add(way);
      trials.push_back(std::move(linear));
    }
    if (found.plan.activations.device < 1 && !r_.given.activations) {
      FoundPlan states = found;
      PlanShares::set_hidden_states(states, found.plan.activations.device + way,
                                    found.needs.layout.max_tokens);
      trials.push_back(std::move(states));
    }
  }

  const SearchRequest& r_;
  const bool discrete_;
  std::map<int64_t, std::vector<Candidates>> candidates_;  // by the number of sequences
  // With this number of sequences no plan was found, so none fits with twice as many.
  int64_t least_too_many_ = std::numeric_limits<int64_t>::max() / 2;
  PlanShares shares_;
  // The caches of this search, if the request brings none.
  struct OwnSteps {
    explicit OwnSteps(const SearchRequest& request)
        : weights(request.model, request.traits), steps(request.hardware, weights) {}
    PlacedWeights weights;
    PricedSteps steps;
  };
  const std::unique_ptr<OwnSteps> own_;
  PricedSteps& steps_;
  PlacedWeights& weights_;
  Predictor predictor_;
  MemoryCheck memory_;
  ShareProgram program_;
  SearchSpace space_;
  ShareFitting fitting_;
  std::vector<FoundPlan> found_;  // all are simulated
  double best_ = kNever;          // the best score of these
  int64_t best_sequences_ = 0;    // the number of sequences of the best one
};

PlanSearch::PlanSearch(const SearchRequest& request) {
  SPW_CHECK(request.workload.requests() > 0, kInvalidArgument, "a workload without requests");
  impl_ = std::make_unique<Impl>(request);
}

PlanSearch::~PlanSearch() = default;

std::vector<FoundPlan> PlanSearch::find(int64_t least_sequences, int64_t most_sequences, int most) {
  return impl_->find(least_sequences, most_sequences, static_cast<size_t>(most));
}

std::vector<FoundPlan> search_plans(const SearchRequest& request, int most) {
  return PlanSearch(request).find(request.least_sequences, request.most_sequences, most);
}

}  // namespace spillway
