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
#include "plan/fill.h"
#include "plan/linear_shares.h"
#include "plan/memory_fit.h"
#include "plan/placed_weights.h"
#include "plan/plan_shares.h"
#include "plan/share_program.h"

namespace spillway {
namespace {

// Of the candidates with the same number of sequences: how many are simulated, and how many of
// those are improved.
constexpr size_t kSimulated = 16, kImproved = 4;
// Small steps gain little: a plan that is this much slower than the best will not catch up, by the
// time that its busiest worker takes at least, or by the simulator.
constexpr double kWorthSimulating = 1.05, kWorthImproving = 1.1;
// A gain below this is not worth another plan.
constexpr double kBetter = 0.9995;
// Of the device's budget: a share of the activations that is worth to be somewhere else.
constexpr double kManyActivations = 0.01;
constexpr double kNever = std::numeric_limits<double>::infinity();

// What a device that is too small can do without.
struct Concession {
  Tier embeddings = Tier::kDevice;
  int chunk = 0;
};

// Plans for one number of sequences with one concession, priced by sums: the best first.
struct Candidates {
  std::vector<FoundPlan> plans = {};
  double best = kNever;   // score
  double bound = kNever;  // none of them will score below it
};

}  // namespace

class PlanSearch::Impl {
 public:
  explicit Impl(const SearchRequest& request)
      : r_(request),
        apart_(request.hardware.has_device()),
        requests_(request.workload.requests()),
        longest_(request.workload.longest()),
        shares_(request),
        own_(request.steps ? nullptr : std::make_unique<OwnSteps>(request)),
        steps_(own_ ? own_->steps : *request.steps),
        weights_(steps_.weights()),
        predictor_(steps_, request.workload),
        memory_(weights_, request.traits, request.budgets),
        program_(request, memory_, predictor_) {}

  std::vector<FoundPlan> find(int64_t least_sequences, int64_t most_sequences, size_t most) {
    found_.clear();
    best_ = kNever;
    std::set<int64_t> tried = counts(least_sequences, most_sequences);
    search_counts(tried);
    // The best number may be between two that were tried.
    for (int round = 0; round < kRounds && best_ < kNever && !r_.only_doubles; ++round) {
      const std::set<int64_t> more = between(tried, best_sequences_);
      if (more.empty()) break;
      search_counts(more);
      tried.insert(more.begin(), more.end());
    }
    sort(found_);
    if (found_.size() > most) found_.resize(most);
    return std::move(found_);
  }

 private:
  static constexpr int64_t kFew = 32;  // numbers of sequences, all of which are tried
  static constexpr int kRounds = 2;
  static constexpr int64_t kBetween = 3;  // numbers that are tried in a round

  void sort(std::vector<FoundPlan>& plans) const {
    std::ranges::stable_sort(plans, {}, [&](const FoundPlan& plan) { return score(plan); });
  }
  void report(double done) const {
    if (r_.on_progress) r_.on_progress(std::min(1.0, done));
  }

  // Numbers of sequences that are worth a try: the runtime has them at once. Of requests that are
  // alike, as many as make equal blocks of all, or one block fewer.
  std::set<int64_t> counts(int64_t least, int64_t most) const {
    most = most > 0 ? std::min(most, requests_) : requests_;
    least = std::clamp<int64_t>(least, 1, most);
    std::set<int64_t> all{least, most};
    if (r_.only_doubles) {
      for (int64_t n = least; n < most; n *= 2) all.insert(n);
      return all;
    }
    if (most - least < kFew) {
      for (int64_t n = least; n <= most; ++n) all.insert(n);
      return all;
    }
    const auto add = [&](int64_t n) {
      if (n >= least && n <= most) all.insert(n);
    };
    for (int64_t n = 1; n < most; n *= 2) {
      add(n);
      add(n + n / 2);
    }
    for (int64_t blocks = 2; blocks <= 8; ++blocks) {
      add((requests_ + blocks - 1) / blocks);
      if (blocks <= 4) add((requests_ + blocks - 2) / (blocks - 1) - 1);
    }
    return all;
  }
  static std::set<int64_t> between(const std::set<int64_t>& tried, int64_t best) {
    const auto at = tried.find(best);
    const int64_t low = at == tried.begin() ? best : *std::prev(at);
    const int64_t high = std::next(at) == tried.end() ? best : *std::next(at);
    std::set<int64_t> all;
    for (int64_t i = 1; i <= kBetween; ++i) {
      const int64_t n = low + (high - low) * i / (kBetween + 1);
      if (n > low && n < high && n != best) all.insert(n);
    }
    return all;
  }

  void search_counts(const std::set<int64_t>& counts) {
    std::vector<const Candidates*> all;
    double done = 0;
    const auto step = 0.5 / static_cast<double>(counts.size());
    for (const int64_t sequences : counts) {
      if (sequences >= 2 * least_too_many_) break;
      const auto [known, added] = candidates_.try_emplace(sequences);
      if (added) known->second = candidates_for(sequences);
      if (known->second.empty()) least_too_many_ = std::min(least_too_many_, sequences);
      for (const Candidates& of : known->second) all.push_back(&of);
      report(done += step);
    }
    std::ranges::stable_sort(all, {}, [](const Candidates* of) { return of->best; });
    for (const Candidates* candidates : all) {
      refine(*candidates);
      report(done += 0.5 / static_cast<double>(all.size()));
    }
  }

  std::vector<Concession> concessions() const {
    std::vector<Concession> all{
        {r_.given.embeddings.value_or(Tier::kDevice), r_.size.micro_tokens}};
    if (apart_ && !r_.given.embeddings) all.push_back({Tier::kHost, r_.size.micro_tokens});
    while (all.back().chunk > r_.smallest_chunk)
      all.push_back({all.back().embeddings, std::max(r_.smallest_chunk, all.back().chunk / 2)});
    return all;
  }

  // Each concession costs time and frees memory: they go on while that pays. Greedy placement makes
  // its own, and some that the program knows nothing of.
  std::vector<Candidates> candidates_for(int64_t sequences) {
    std::vector<Candidates> all;
    const int micro_batch = r_.given.micro_batch.value_or(0);
    if (auto greedy = try_greedy(sequences, r_.size.micro_tokens, micro_batch))
      all.push_back({.plans = {std::move(*greedy)}});
    double solved = kNever;  // the best of the program's
    std::vector<int> micro_batches = micro_batches_of(sequences);
    for (const Concession& concession : concessions()) {
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
      // What was found with it says which micro-batches to try with the next one.
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
  // The CPU's part in linear layers may decide which number of sequences is the best.
  void add_shared_linears(Candidates& all) {
    // It depends on how many tokens are multiplied together, and on whether the CPU attends: the
    // best for each of these.
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

  std::vector<int> micro_batches_of(int64_t sequences) const {
    if (r_.given.micro_batch) return {*r_.given.micro_batch};
    std::vector<int> all{0};  // all of them together
    for (int64_t parts = 2; apart_ && parts <= 16 && parts <= sequences; parts *= 2)
      all.push_back(static_cast<int>((sequences + parts - 1) / parts));
    return all;
  }

  RunSize size_of(int64_t sequences, int chunk) const {
    RunSize size = r_.size;
    size.micro_tokens = chunk;
    size.sequences = sequences;
    size.tokens = std::max<int64_t>(size.tokens, longest_);
    return size;
  }

  // The lower the better; what breaks a limit comes behind everything that does not.
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
  bool settle(FoundPlan& plan) {
    plan.needs = memory_.needs(plan.plan, plan.size);
    return fit(plan).fits();
  }
  MemoryFit fit(const FoundPlan& plan) const { return memory_.fit(plan.needs); }

  FoundPlan blank(int64_t sequences, int chunk, int micro_batch) const {
    FoundPlan plan{.size = size_of(sequences, chunk)};
    plan.plan.micro_batch = micro_batch;
    r_.given.apply_to(plan.plan);
    plan.plan.attention_topk = r_.attention_topk;
    return plan;
  }

  std::vector<FoundPlan> try_concession(int64_t sequences, const Concession& concession,
                                        const std::vector<int>& micro_batches) {
    std::vector<FoundPlan> found;
    for (const int micro_batch : micro_batches) {
      FoundPlan all = blank(sequences, concession.chunk, micro_batch);
      all.plan.embeddings = concession.embeddings;
      if (settle(all)) {  // on the device: nothing is faster
        price(all, PriceBy::kSums);
        found.push_back(std::move(all));
        return found;
      }
      const size_t before = found.size();
      try_places(all, found);
      // Micro-batches are for KV that is moved, and for hidden states.
      const bool moves = std::any_of(
          found.begin() + static_cast<ptrdiff_t>(before), found.end(), [](const FoundPlan& plan) {
            return plan.plan.kv.device < 1 || plan.plan.activations.device < 1;
          });
      if (found.size() > before && !moves) break;
    }
    return found;
  }
  void try_places(const FoundPlan& all, std::vector<FoundPlan>& found) {
    bool any_place = false;  // all KV is on the device
    for (const AttentionPlace place : places()) {
      if (any_place && place != places().front()) break;
      // In micro-batches, too, the device waits for the CPU's rows in every one.
      if (place == AttentionPlace::kCpu && all.plan.micro_batch > 0 && places().size() > 1 &&
          !r_.given.micro_batch)
        continue;
      FoundPlan plan = all;
      plan.plan.attention = place;
      // Without a GPU the thread that computes waits for pages on disk itself: weights go first.
      const bool solved = (!apart_ && program_.try_shares(plan, /*kv_on_disk=*/false)) ||
                          program_.try_shares(plan, r_.budgets.disk > 0);
      const bool fitted = solved && make_fit(plan);
      if (fitted) {
        any_place = plan.plan.kv.device >= 1;
        price(plan, PriceBy::kSums);
        found.push_back(plan);
      }
      if (!apart_ || r_.given.activations || (fitted && has_few_hidden_states(plan))) continue;
      FoundPlan away = all;
      away.plan.attention = place;
      away.plan.activations = {0, 1, 0};
      if (!program_.try_shares(away, r_.budgets.disk > 0) || !make_fit(away)) continue;
      price(away, PriceBy::kSums);
      if (!fitted || score(away) < score(plan)) found.push_back(std::move(away));
    }
  }
  // Whether hidden states between layers take so little that it does not matter where they are.
  bool has_few_hidden_states(const FoundPlan& plan) const {
    const double bytes = 4.0 * static_cast<double>(r_.model.spec.hidden) *
                         static_cast<double>(plan.needs.layout.max_tokens);
    return bytes < kManyActivations * static_cast<double>(r_.budgets.device);
  }
  // Which processor may attend to what is not on the device.
  std::vector<AttentionPlace> places() const {
    const bool open = r_.given.attention == AttentionPlace::kAuto && r_.same_for_every_sequence;
    if (r_.given.attention && !open) return {*r_.given.attention};
    if (!apart_) return {AttentionPlace::kAuto};
    if (r_.same_for_every_sequence) return {AttentionPlace::kCpu, AttentionPlace::kGpu};
    return {AttentionPlace::kAuto, AttentionPlace::kCpu, AttentionPlace::kGpu};
  }
  // No plan is worse than greedy placement.
  std::optional<FoundPlan> try_greedy(int64_t sequences, int chunk, int micro_batch) {
    FoundPlan plan = blank(sequences, chunk, micro_batch);
    const auto greedy = try_fill_from_the_top(weights_, plan.size, r_.traits, r_.budgets);
    if (!greedy) return std::nullopt;
    plan.plan.weights = greedy->weights;
    plan.plan.kv = greedy->kv;
    plan.plan.embeddings = greedy->embeddings;
    plan.plan.activations = greedy->activations;
    r_.given.apply_to(plan.plan);
    if (r_.same_for_every_sequence && plan.plan.attention == AttentionPlace::kAuto)
      plan.plan.attention = same_for_every_sequence(plan.plan);
    if (!settle(plan)) return std::nullopt;
    price(plan, PriceBy::kSums);
    return plan;
  }

  // Weights leave the device until it fits there, by little at first, as host memory may be full
  // too.
  bool make_fit(FoundPlan& found) {
    if (r_.given.weights) return settle(found);
    const TierShares wanted = found.plan.weights;
    const double first = apart_ ? wanted.device : wanted.host;
    // By 0, 1, 3, 6, 10, ... thousandths.
    const auto less = [](int64_t i) { return static_cast<double>(i * (i + 1) / 2) / kWeightSteps; };
    int64_t last = 0;
    while (less(last + 1) <= first) ++last;
    const auto leave = [&](int64_t i) {
      if (i > 0)
        shares_.set_weights(found.plan, first - less(i), apart_ ? wanted.host + less(i) : 0);
      return settle(found);
    };
    const int64_t least =
        first_that(0, last, [&](int64_t i) { return leave(i) || fit(found).computing; });
    const bool fitted = least <= last && leave(least);
    if (!fitted) found.plan.weights = wanted;
    if (!fitted && !(apart_ && fit_host(found))) return false;
    take_what_is_left(found);
    return true;
  }
  // The program keeps more free than slots and staging may need.
  void take_what_is_left(FoundPlan& found) {
    const TierShares had = found.plan.weights;
    const auto more = [&](const auto& set) {
      FoundPlan trial = found;
      const auto fits_with = [&](int64_t steps) {
        set(trial.plan, static_cast<double>(steps) / kWeightSteps);
        return settle(trial);
      };
      // A little more may fit less well than much more: where homes are, staging depends on it.
      int64_t low = int64_t{1} << 9;
      while (low > 0 && !fits_with(low)) low /= 2;
      int64_t high = 2 * low;
      while (low + 1 < high) {
        const int64_t middle = low + (high - low) / 2;
        (fits_with(middle) ? low : high) = middle;
      }
      if (low > 0 && fits_with(low)) found = std::move(trial);
    };
    if (apart_ && had.device < 1) {
      more([&](Plan& plan, double share) {
        shares_.set_weights(plan, had.device + share, had.disk > 0 ? had.host : had.host - share);
      });
    }
    const TierShares now = found.plan.weights;
    if (now.disk > 0) {
      more([&](Plan& plan, double share) {
        if (apart_) {
          shares_.set_weights(plan, now.device, now.host + share);
        } else {
          shares_.set_weights(plan, now.host + share, 0);
        }
      });
    }
  }
  // Host memory is too small: more of the weights on disk.
  bool fit_host(FoundPlan& found) {
    if (r_.budgets.disk == 0) return false;
    const TierShares wanted = found.plan.weights;
    constexpr double kStep = 0.02;
    const auto last = static_cast<int64_t>(wanted.host / kStep);
    int64_t least = last + 1;
    for (const double device : {wanted.device, wanted.device * 0.9, 0.0}) {
      FoundPlan trial = found;
      const auto leave = [&](int64_t i) {
        shares_.set_weights(trial.plan, device, wanted.host - static_cast<double>(i) * kStep);
        return settle(trial);
      };
      const int64_t i =
          first_that(0, last, [&](int64_t at) { return leave(at) || fit(trial).host; });
      if (i >= least || !leave(i)) continue;
      least = i;
      found = std::move(trial);
    }
    return least <= last;
  }
  // The first of [low, high] that holds, as all behind it do; high + 1 where none does.
  template <class Holds>
  static int64_t first_that(int64_t low, int64_t high, Holds holds) {
    if (holds(low)) return low;
    ++high;
    while (low + 1 < high) {
      const int64_t middle = low + (high - low) / 2;
      (holds(middle) ? high : low) = middle;
    }
    return high;
  }

  // Simulates and improves what may be the best.
  void refine(const Candidates& candidates) {
    if (candidates.bound > kWorthSimulating * best_) return;
    std::vector<FoundPlan> found;
    for (const FoundPlan& plan : candidates.plans) {
      if (found.size() == kSimulated) break;
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
    for (size_t i = 0; i < std::min(found.size(), kImproved); ++i) {
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
  // No plan scores below it.
  double bound(const FoundPlan& plan) {
    return score(predictor_.predict(plan.plan, plan.needs, plan.size, PriceBy::kBusiest));
  }

  // Who multiplies a row decides its bits, so not where these must not depend on the other
  // sequences.
  bool shares_linears() const {
    return apart_ && !r_.same_for_every_sequence && !r_.given.cpu_linear;
  }
  // A plan with the CPU's part in linear layers, of all steps or of decoding alone: those that are
  // faster than without it.
  std::vector<FoundPlan> with_shared_linears(const FoundPlan& plan, PriceBy by) {
    std::vector<FoundPlan> found;
    if (plan.plan.weights.device >= 1 || !plan.plan.cpu_linear.empty()) return found;
    FoundPlan shared = plan;
    shared.plan.cpu_linear =
        balanced_linear_shares(r_.hardware, r_.model, weights_.homes(shared.plan).of, shared.plan,
                               shared.needs.layout, shared.size.sequences, shared.predicted);
    while (!shared.plan.cpu_linear.empty()) {
      // Host memory may be full of weights: the CPU's rows need some of it.
      if (settle(shared) || (!r_.given.weights && fit_host(shared))) {
        price(shared, by);
        if (score(shared) < score(plan)) found.push_back(shared);
      }
      shared.plan.cpu_linear.resize(shared.plan.cpu_linear.size() > 1 ? 1 : 0);
    }
    return found;
  }

  // Steps around it. By sums, coarse ones: they only say what is worth simulating.
  void improve(FoundPlan& found, PriceBy by) {
    if (found.plan.all_on_device()) return;
    const double least = by == PriceBy::kSums ? 0.01 : 0.002;
    for (double step = 0.05; step > 0.9 * least; step /= 5) {
      for (bool better = true; better;) {
        better = false;
        std::vector<FoundPlan> trials;
        for (const double way : {step, -step}) add_neighbours(found, way, trials);
        for (FoundPlan& trial : trials) {
          if (!settle(trial) || bound(trial) >= score(found) * kBetter) continue;
          price(trial, by);
          if (score(trial) < score(found) * kBetter) {
            found = std::move(trial);
            better = true;
          }
        }
      }
    }
  }
  // Each share that was found by so much more or, below 0, less.
  void add_neighbours(const FoundPlan& found, double way, std::vector<FoundPlan>& trials) const {
    const auto at_least = [&](double least) {
      return std::copysign(std::max(std::fabs(way), least), way);
    };
    const TierShares& now = found.plan.weights;
    if (!r_.given.weights) {
      FoundPlan weights = found;
      shares_.set_weights(weights.plan, (apart_ ? now.device : now.host) + way,
                          now.host - (apart_ ? way : 0));
      trials.push_back(std::move(weights));
    }
    if (apart_ && !r_.given.kv && !shares_.kv_has_one_home(found.plan)) {
      FoundPlan kv = found;
      const double more = at_least(1 / PlanShares::kv_parts(found));
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
  const bool apart_;
  const int64_t requests_, longest_;
  std::map<int64_t, std::vector<Candidates>> candidates_;  // by the number of sequences
  // Nothing fits with so many sequences, and surely not with twice as many.
  int64_t least_too_many_ = std::numeric_limits<int64_t>::max() / 2;
  PlanShares shares_;
  // The request's prices of steps, or those of this search alone.
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
  std::vector<FoundPlan> found_;  // simulated
  double best_ = kNever;          // score of these
  int64_t best_sequences_ = 0;    // of the one that has it
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
