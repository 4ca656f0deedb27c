// SPDX-License-Identifier: Apache-2.0
#include "plan/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.h"
#include "plan/fill.h"
#include "plan/linear_program.h"
#include "plan/linear_shares.h"
#include "plan/residence.h"
#include "tensor/attention_layout.h"

namespace spillway {
namespace {

// Shares of weights are tried in thousandths: homes are whole matrices, of which there are
// hundreds.
constexpr double kWeightSteps = 1000;
// Of the candidates: by their sums, then by the simulator.
constexpr size_t kSimulated = 16, kImproved = 4;
// Of the device's budget: an activations' share that is worth to be somewhere else.
constexpr double kManyActivations = 0.01;

// How many sequences are at work, and how they are cut.
struct Cut {
  int64_t sequences = 1;
  int micro_batch = 0;  // 0: all of them
};

double rounded(double share, double steps) { return std::floor(share * steps + 1e-6) / steps; }

class Search {
 public:
  explicit Search(const SearchRequest& request)
      : r_(request),
        apart_(request.hardware.has_device()),
        embeddings_(request.given.embeddings.value_or(Tier::kDevice)),
        chunk_(request.size.micro_tokens) {}

  std::vector<FoundPlan> run(size_t most) {
    for (const Cut& cut : cuts()) try_cut(cut);
    // What a device that is too small can do without, one after the other, as fill.h has it.
    while (found_.empty() && !best_by_rule_ && try_concession()) {
      for (const Cut& cut : cuts()) try_cut(cut);
    }
    sort_found();
    if (found_.size() > kSimulated) found_.resize(kSimulated);
    if (best_by_rule_) found_.push_back(std::move(*best_by_rule_));
    for (FoundPlan& plan : found_) price(plan, PriceBy::kSimulator);
    share_linears();
    place_by_gain();
    sort_found();
    for (size_t i = 0; i < std::min(found_.size(), kImproved); ++i) improve(found_[i]);
    sort_found();
    if (found_.size() > most) found_.resize(most);
    return std::move(found_);
  }

 private:
  void sort_found() {
    std::stable_sort(found_.begin(), found_.end(),
                     [&](const FoundPlan& a, const FoundPlan& b) { return score(a) < score(b); });
  }
  bool try_concession() {
    if (apart_ && embeddings_ == Tier::kDevice && !r_.given.embeddings) {
      embeddings_ = Tier::kHost;
      return true;
    }
    if (chunk_ <= r_.smallest_chunk) return false;
    chunk_ = std::max(r_.smallest_chunk, chunk_ / 2);
    return true;
  }

  int64_t most_sequences() const {
    const int64_t requests = r_.workload.requests();
    return r_.most_sequences > 0 ? std::min(r_.most_sequences, requests) : requests;
  }

  std::vector<Cut> cuts() const {
    const int64_t most = most_sequences(), least = std::min(r_.least_sequences, most);
    std::set<int64_t> sequences{least, most};
    for (int64_t n = std::max<int64_t>(1, least); n < most; n *= 2) {
      sequences.insert(n);
      if (n + n / 2 < most) sequences.insert(n + n / 2);
    }
    std::vector<Cut> all;
    for (const int64_t n : sequences) {
      if (n < least) continue;
      if (r_.given.micro_batch) {
        all.push_back({n, *r_.given.micro_batch});
        continue;
      }
      all.push_back({n, 0});
      if (!apart_) continue;
      for (int64_t parts = 2; parts <= 16 && parts <= n; parts *= 2)
        all.push_back({n, static_cast<int>((n + parts - 1) / parts)});
    }
    return all;
  }

  RunSize size_of(const Cut& cut) const {
    RunSize size = r_.size;
    size.micro_tokens = chunk_;
    size.sequences = cut.sequences;
    size.tokens = std::max<int64_t>(size.tokens, r_.workload.longest());
    return size;
  }

  // The lower the better; what breaks a limit comes behind everything that does not.
  double score(const FoundPlan& plan) const {
    const Prediction& p = plan.predicted;
    double late = 0;
    if (r_.max_latency_s) late += std::max(0.0, p.latency_s / *r_.max_latency_s - 1);
    if (r_.max_first_token_s) late += std::max(0.0, p.first_token_s / *r_.max_first_token_s - 1);
    const double seconds = r_.objective == Objective::kLatency ? p.latency_s : p.total_s();
    return late > 0 ? 1e12 * (1 + late) : seconds;
  }

  void price(FoundPlan& plan, PriceBy by) const {
    plan.predicted =
        predict(r_.hardware, r_.model, plan.plan, plan.needs, plan.size, r_.workload, by);
  }
  bool settle(FoundPlan& plan) const {
    plan.needs = footprint(r_.model, plan.plan, plan.size, r_.traits);
    return fits(plan.needs, r_.traits, r_.budgets);
  }

  void try_cut(const Cut& cut) {
    FoundPlan all{.size = size_of(cut)};
    all.plan.micro_batch = cut.micro_batch;
    r_.given.apply_to(all.plan);
    all.plan.embeddings = embeddings_;
    all.plan.attention_topk = r_.attention_topk;
    if (settle(all)) {  // on the device: nothing is faster
      price(all, PriceBy::kSums);
      found_.push_back(all);
      return;
    }
    for (const AttentionPlace place : places()) {
      FoundPlan plan = all;
      plan.plan.attention = place;
      // Without a GPU the thread that computes waits for pages on disk itself: weights go first.
      const bool found = (!apart_ && try_shares(plan, /*kv_on_disk=*/false)) ||
                         try_shares(plan, r_.budgets.disk > 0);
      const bool fit = found && make_fit(plan);
      if (fit) {
        price(plan, PriceBy::kSums);
        found_.push_back(plan);
      }
      if (!apart_ || r_.given.activations || (fit && has_few_rows(plan))) continue;
      FoundPlan away = all;
      away.plan.attention = place;
      away.plan.activations = {0, 1, 0};
      if (!try_shares(away, r_.budgets.disk > 0) || !make_fit(away)) continue;
      price(away, PriceBy::kSums);
      if (!fit || score(away) < score(plan)) found_.push_back(std::move(away));
    }
    try_rule(all);
  }
  // Whether activations between layers take so little that it does not matter where they are.
  bool has_few_rows(const FoundPlan& plan) const {
    const double bytes = 4.0 * static_cast<double>(r_.model.spec.hidden) *
                         static_cast<double>(plan.needs.layout.max_tokens);
    return bytes < kManyActivations * static_cast<double>(r_.budgets.device);
  }
  // Who may attend to what is not on the device.
  std::vector<AttentionPlace> places() const {
    const bool open = r_.given.attention == AttentionPlace::kAuto && r_.same_for_every_sequence;
    if (r_.given.attention && !open) return {*r_.given.attention};
    if (!apart_) return {AttentionPlace::kAuto};
    if (r_.same_for_every_sequence) return {AttentionPlace::kCpu, AttentionPlace::kGpu};
    return {AttentionPlace::kAuto, AttentionPlace::kCpu, AttentionPlace::kGpu};
  }
  // Sequences that the CPU attends to alone, as those on the device would be another's.
  bool kv_has_one_home(const Plan& plan) const {
    return apart_ && r_.same_for_every_sequence && plan.attention == AttentionPlace::kCpu;
  }
  // Never worse than the rule.
  void try_rule(FoundPlan plan) {
    try {
      const Plan rule = fill_from_the_top(r_.model, plan.size, r_.traits, r_.budgets);
      plan.plan.weights = rule.weights;
      plan.plan.kv = rule.kv;
      plan.plan.embeddings = rule.embeddings;
      plan.plan.activations = rule.activations;
      r_.given.apply_to(plan.plan);
    } catch (const Error&) {
      return;  // it finds nothing either
    }
    if (r_.same_for_every_sequence && plan.plan.attention == AttentionPlace::kAuto)
      plan.plan.attention = same_for_every_sequence(plan.plan);
    if (!settle(plan)) return;
    price(plan, PriceBy::kSums);
    if (!best_by_rule_ || score(plan) < score(*best_by_rule_)) best_by_rule_ = std::move(plan);
  }

  // What a plan's parts take, by the footprint of extremes: bytes of all weights' matrices and of
  // all KV, and what is there besides.
  struct Sizes {
    double weights = 0, layer = 0, kv = 0;
    double device_fixed = 0;
    // Of a step where something is away: its tokens, those that go through a layer together, and
    // bytes of a token between layers. Rows of activations that are always on the device are part
    // of device_fixed.
    int64_t step_tokens = 1;
    int micro_tokens = 1;
    double row = 0, fixed_rows = 0;
  };
  Sizes sizes_of(const FoundPlan& plan) const {
    Sizes sizes;
    for (const BoundWeight& weight : r_.model.weights) {
      if (weight.slot.layer >= 0 && !weight.slot.is_vector())
        sizes.weights += static_cast<double>(weight.bytes());
    }
    sizes.layer = sizes.weights / r_.model.spec.layers;
    const RunLayout& layout = plan.needs.layout;
    sizes.kv = static_cast<double>(layout.kv.block_bytes()) *
               static_cast<double>(layout.device_blocks + layout.blocks_away());
    FoundPlan away = plan;
    away.plan.weights = apart_ ? TierShares{0, 1, 0} : TierShares{0, 0, 1};
    if (apart_) away.plan.kv = {0, 1, 0};
    away.plan.attention = AttentionPlace::kCpu;
    const Footprint needs = footprint(r_.model, away.plan, away.size, r_.traits);
    sizes.step_tokens = needs.layout.max_tokens;
    sizes.micro_tokens = needs.layout.micro_tokens;
    sizes.row = 4.0 * static_cast<double>(r_.model.spec.hidden);
    sizes.fixed_rows = away.plan.activations.device * static_cast<double>(sizes.step_tokens);
    sizes.device_fixed = static_cast<double>(needs.device.total()) -
                         static_cast<double>(needs.device.of(MemoryTag::kStaging)) +
                         static_cast<double>(needs.workspace);
    if (!apart_) sizes.device_fixed -= sizes.kv;
    return sizes;
  }

  // Shares by the linear program; false where nothing satisfies it.
  bool try_shares(FoundPlan& found, bool kv_on_disk) const {
    const Hardware& h = r_.hardware;
    Plan& plan = found.plan;
    const Sizes sizes = sizes_of(found);
    const auto device_budget = static_cast<double>(apart_ ? r_.budgets.device : r_.budgets.host);
    if (sizes.device_fixed > device_budget) return false;
    const auto layers = static_cast<double>(r_.model.spec.layers);
    // What does not depend on shares: products, by the prices of a plan with everything there.
    FoundPlan resident = found;
    resident.plan.attention = AttentionPlace::kAuto;
    resident.plan.activations = {};
    resident.needs = footprint(r_.model, resident.plan, resident.size, r_.traits);
    resident.needs.layout.max_tokens = static_cast<int>(sizes.step_tokens);
    resident.needs.layout.micro_tokens = sizes.micro_tokens;
    price(resident, PriceBy::kSums);
    const double blocks = std::ceil(static_cast<double>(r_.workload.requests()) /
                                    static_cast<double>(found.size.sequences));
    const auto per_layer = [&](const StepEstimate& step) {
      return step.busy[static_cast<size_t>(Worker::kDevice)] / layers;
    };
    const double decode_steps =
        resident.predicted.step_s > 0 ? resident.predicted.decode_s / resident.predicted.step_s : 0;
    const double prefill_steps =
        resident.predicted.prefill_step.seconds > 0
            ? resident.predicted.prefill_s / resident.predicted.prefill_step.seconds
            : 0;
    const double all_kv =  // of a layer, read in a step of decoding
        static_cast<double>(found.size.sequences) * r_.workload.decode_keys() * 2.0 *
        static_cast<double>(found.needs.layout.kv.plane_block_bytes()) / double{kKvBlockTokens};
    const double new_kv = static_cast<double>(r_.workload.prompt_tokens()) / blocks /
                          std::max(1.0, prefill_steps / blocks) * 2.0 *
                          static_cast<double>(found.needs.layout.kv.plane_block_bytes()) /
                          double{kKvBlockTokens};
    const KvTraffic traffic = kv_traffic(h, r_.model.spec, found.size.kv_type, plan.attention_topk);
    const double group = query_group(r_.model.spec);
    const double attend =
        attention_seconds(h.device(), found.size.kv_type, group, all_kv * traffic.read);
    const double other = std::max(0.0, per_layer(resident.predicted.decode_step) - attend);

    LinearProgram program;
    constexpr double kAny = LinearProgram::kAny;
    // A share from `least` to `most`, or the one that is given.
    const auto share = [&](const std::optional<TierShares>& of, Tier tier, double most,
                           double least = 0) {
      if (!of) return program.variable(0, least, most);
      const double fixed = tier == Tier::kDisk   ? of->disk
                           : tier == Tier::kHost ? (apart_ ? of->host : 0)
                                                 : of->device + (apart_ ? 0 : of->host);
      return program.variable(0, fixed, fixed);
    };
    const GivenFields& given = r_.given;
    const int wd = share(given.weights, Tier::kDevice, 1),
              wh = share(given.weights, Tier::kHost, apart_ ? 1 : 0),
              wk = share(given.weights, Tier::kDisk, r_.budgets.disk > 0 ? 1 : 0);
    const bool one_home = kv_has_one_home(plan);
    const int cd = share(given.kv, Tier::kDevice, one_home ? 0 : 1),
              ch = share(given.kv, Tier::kHost, apart_ ? 1 : 0),
              ck = share(given.kv, Tier::kDisk, kv_on_disk && !one_home ? 1 : 0);
    // Of the sequences: attended to by the CPU.
    const int on_cpu = program.variable(0, 0, plan.attention == AttentionPlace::kGpu ? 0 : 1);
    // Of a step's tokens between layers: on the device, in host memory.
    const bool rows_away = plan.activations.device < 1;
    const int ad = share(given.activations, Tier::kDevice, 1,
                         rows_away ? least_rows(found, sizes.step_tokens) : 1),
              ah = share(given.activations, Tier::kHost, 1);
    if (!given.activations) program.constrain({{ad, 1}, {ah, 1}}, 1, 1);
    const double rows = sizes.row * static_cast<double>(sizes.step_tokens);
    const int decode = program.variable(layers * decode_steps);
    const int prefill = program.variable(layers * prefill_steps);
    program.constrain({{wd, 1}, {wh, 1}, {wk, 1}}, 1, 1);
    program.constrain({{cd, 1}, {ch, 1}, {ck, 1}}, 1, 1);
    if (plan.attention == AttentionPlace::kCpu) {
      program.constrain({{on_cpu, 1}, {ch, -1}}, 0, 0);
    } else if (plan.attention == AttentionPlace::kAuto && r_.given.cpu_attention) {
      program.constrain({{on_cpu, 1}, {ch, -*r_.given.cpu_attention}}, 0, 0);
    } else {
      program.constrain({{on_cpu, 1}, {ch, -1}}, -kAny, 0);
    }
    const double disk_read = std::max(1.0, h.disk_read), disk_write = std::max(1.0, h.disk_write);
    for (const int time : {decode, prefill}) {
      const bool decoding = time == decode;
      const double read = decoding ? all_kv : 0, written = decoding ? 0 : new_kv;
      if (apart_) {
        const bool quantized = is_quantized(r_.model.main_dtype());
        const auto up = [&](double bytes, bool pageable) {
          using Source = Hardware::Source;
          return bytes / (h.link_beside_cpu *
                          h.to_device_rate(std::max(bytes, kLargeTransfer),
                                           pageable ? Source::kPageable : Source::kPinned));
        };
        const double weights_s = up(sizes.layer, quantized), kv_s = up(read, true),
                     host_kv_s = up(read * (traffic.moved + traffic.over_bus), true);
        const double down = h.to_host.best();
        std::vector<std::pair<int, double>> link{
            {wh, weights_s}, {wk, weights_s}, {ch, host_kv_s}, {ck, kv_s}, {time, -1}};
        link.emplace_back(decoding ? on_cpu : ah, decoding ? -host_kv_s : up(rows, false));
        program.constrain(link, -kAny, 0);
        program.constrain({{ch, written / down},
                           {ck, written / down},
                           {ah, decoding ? 0 : rows / down},
                           {time, -1}},
                          -kAny, 0);
      }
      program.constrain({{wk, sizes.layer / disk_read}, {ck, read / disk_read}, {time, -1}}, -kAny,
                        0);
      program.constrain({{ck, written / disk_write}, {time, -1}}, -kAny, 0);
    }
    program.constrain({{decode, 1}, {on_cpu, attend}}, other + attend, kAny);
    program.constrain({{prefill, 1}}, per_layer(resident.predicted.prefill_step), kAny);
    if (apart_) {
      const double cpu =
          attention_seconds(h.host, found.size.kv_type, group, all_kv * traffic.read) /
          h.cpu_beside_link;
      program.constrain({{on_cpu, cpu}, {decode, -1}}, -kAny, 0);
    }
    // Two layers' worth of what streams is on the device, and pages of a layer on their way.
    const auto parts =
        plan.micro_batch > 0
            ? std::max(1.0, static_cast<double>(found.size.sequences) / plan.micro_batch)
            : 1;
    const double slots = 2 * sizes.layer, staging = 2 * sizes.kv / layers / parts;
    program.constrain({{wd, sizes.weights},
                       {wh, slots},
                       {wk, slots},
                       {cd, sizes.kv},
                       {ch, staging},
                       {ck, staging},
                       {on_cpu, -staging},
                       {ad, rows}},
                      -kAny, device_budget - sizes.device_fixed + sizes.fixed_rows * sizes.row);
    if (apart_) {
      program.constrain({{wh, sizes.weights}, {ch, sizes.kv}, {ah, rows}}, -kAny,
                        static_cast<double>(r_.budgets.host) * 0.98);
    }
    program.constrain({{wk, sizes.weights}, {ck, sizes.kv}}, -kAny,
                      static_cast<double>(r_.budgets.disk) * 0.98);
    const auto solution = program.try_solve();
    if (!solution) return false;
    const auto value = [&](int variable) {
      return std::max(0.0, (*solution)[static_cast<size_t>(variable)]);
    };
    set_weights(plan, value(wd), value(wh));
    set_kv(plan, value(cd), value(ch), kv_shares(found));
    if (rows_away && !given.activations) set_rows(found, value(ad), sizes.step_tokens);
    if (plan.attention == AttentionPlace::kAuto && plan.kv.host > 0 && !r_.given.cpu_attention)
      plan.cpu_attention = whole_share(value(on_cpu) / plan.kv.host, found);
    return true;
  }

  // Rows that decode stay on the device: what prompts have moves in their step alone.
  static double least_rows(const FoundPlan& found, int64_t step_tokens) {
    return std::min(1.0,
                    static_cast<double>(found.size.at_work()) / static_cast<double>(step_tokens));
  }
  // Whole tokens.
  static void set_rows(FoundPlan& found, double device, int64_t step_tokens) {
    const double share = rounded(std::clamp(device, least_rows(found, step_tokens), 1.0),
                                 static_cast<double>(step_tokens));
    found.plan.activations = {share, 1 - share, 0};
  }
  // Of the sequences in host memory, a whole number, unless they come in parts.
  static double whole_share(double share, const FoundPlan& found) {
    if (found.needs.layout.parts) return std::clamp(share, 0.0, 1.0);
    const double away =
        std::max(1.0, std::round(found.plan.kv.host * static_cast<double>(found.size.sequences)));
    return std::clamp(std::round(share * away) / away, 0.0, 1.0);
  }
  void set_weights(Plan& plan, double device, double host) const {
    if (r_.given.weights) {
      plan.weights = *r_.given.weights;
      return;
    }
    const double d = rounded(std::clamp(device, 0.0, 1.0), kWeightSteps);
    const double h = apart_ ? rounded(std::clamp(host, 0.0, 1 - d), kWeightSteps) : 0;
    const double rest = 1 - d - h;
    // Without a disk nothing is there.
    const bool disk = r_.budgets.disk > 0 && rest > 0.5 / kWeightSteps && device + host < 1 - 1e-6;
    plan.weights = apart_ ? TierShares{d, disk ? h : 1 - d, disk ? rest : 0}
                          : TierShares{0, disk ? d : 1, disk ? rest : 0};
  }
  // Into how many equal parts KV can be shared out: whole sequences, or of a single one that may be
  // in several memories what is cut from it (footprint.h).
  double kv_shares(const FoundPlan& found) const {
    if (found.size.sequences > 1 || found.size.whole_sequences || found.size.same_parts)
      return static_cast<double>(found.size.sequences);
    const int64_t runs = blocks_for_tokens(found.size.tokens) / kAttentionPartBlocks;
    return static_cast<double>(std::max<int64_t>(1, runs));
  }
  void set_kv(Plan& plan, double device, double host, double parts) const {
    if (r_.given.kv) {
      plan.kv = *r_.given.kv;
      return;
    }
    const double d = rounded(std::clamp(device, 0.0, 1.0), parts);
    const double h = apart_ ? rounded(std::clamp(host, 0.0, 1 - d), parts) : 0;
    const double rest = 1 - d - h;
    const bool disk = r_.budgets.disk > 0 && rest > 0.5 / parts && device + host < 1 - 1e-6;
    plan.kv = TierShares{d, disk ? h : 1 - d, disk ? rest : 0};
    if (!apart_) plan.kv = TierShares{disk ? d : 1, 0, disk ? rest : 0};
  }

  // The program knows slots, staging and rounding about: weights leave the device until it fits
  // there, by little at first, as host memory may be full too.
  bool make_fit(FoundPlan& found) const {
    if (r_.given.weights) return settle(found);
    const TierShares wanted = found.plan.weights;
    const double first = apart_ ? wanted.device : wanted.host;
    for (double step = 0, less = 0; less <= first; step += 1 / kWeightSteps, less += step) {
      if (less > 0) set_weights(found.plan, first - less, apart_ ? wanted.host + less : 0);
      if (settle(found)) return true;
    }
    found.plan.weights = wanted;
    return apart_ && fit_host(found);
  }
  // Host memory is too small: more of the weights on disk.
  bool fit_host(FoundPlan& found) const {
    if (r_.budgets.disk == 0) return false;
    for (double share = found.plan.weights.host; share >= 0; share -= 0.02) {
      for (const double device :
           {found.plan.weights.device, found.plan.weights.device * 0.9, 0.0}) {
        FoundPlan trial = found;
        set_weights(trial.plan, device, share);
        if (settle(trial)) {
          found = std::move(trial);
          return true;
        }
      }
    }
    return false;
  }

  // Who multiplies a row decides its bits, so not where these must not depend on the other
  // sequences.
  void share_linears() {
    if (!apart_ || r_.same_for_every_sequence || r_.given.cpu_linear) return;
    for (size_t i = 0, count = found_.size(); i < count; ++i) {
      if (found_[i].plan.weights.device >= 1) continue;
      FoundPlan shared = found_[i];
      shared.plan.cpu_linear =
          balanced_linear_shares(r_.hardware, r_.model, shared.plan, shared.needs.layout,
                                 shared.size.sequences, shared.predicted);
      // Of all steps, or of decoding alone.
      while (!shared.plan.cpu_linear.empty()) {
        if (settle(shared)) {
          price(shared, PriceBy::kSimulator);
          if (score(shared) < score(found_[i])) found_.push_back(shared);
        }
        shared.plan.cpu_linear.resize(shared.plan.cpu_linear.size() > 1 ? 1 : 0);
      }
    }
  }

  // Where CPU and GPU share linear layers: those that gain the most of being on the device first.
  void place_by_gain() {
    for (size_t i = 0, count = found_.size(); i < count; ++i) {
      if (found_[i].plan.cpu_linear.empty()) continue;
      FoundPlan placed = found_[i];
      placed.plan =
          with_residence_by_gain(r_.hardware, r_.model, placed.plan, placed.size.sequences);
      if (placed.plan.overrides.empty() || !settle(placed)) continue;
      price(placed, PriceBy::kSimulator);
      // By less than the simulator is off by, spread evenly is the safer way.
      if (score(placed) < kSurelyBetter * score(found_[i])) found_[i] = std::move(placed);
    }
  }

  // Steps around it, as the simulator sees them.
  void improve(FoundPlan& found) const {
    if (found.plan.all_on_device()) return;
    const auto sequences = static_cast<double>(found.size.sequences);
    for (const double step : {0.05, 0.01, 0.002}) {
      for (bool better = true; better;) {
        better = false;
        std::vector<FoundPlan> trials;
        for (const double way : {step, -step}) {
          FoundPlan weights = found;
          const TierShares& now = found.plan.weights;
          set_weights(weights.plan, (apart_ ? now.device : now.host) + way,
                      now.host - (apart_ ? way : 0));
          trials.push_back(std::move(weights));
          if (apart_ && !kv_has_one_home(found.plan)) {
            FoundPlan kv = found;
            const double least = std::copysign(std::max(step, 1 / kv_shares(found)), way);
            set_kv(kv.plan, std::max(0.0, found.plan.kv.device + least),
                   std::max(0.0, found.plan.kv.host - least), kv_shares(found));
            trials.push_back(std::move(kv));
          }
          if (found.plan.cpu_attention && !r_.given.cpu_attention) {
            FoundPlan attention = found;
            const double least =
                std::copysign(std::max(step, 1 / (found.plan.kv.host * sequences)), way);
            attention.plan.cpu_attention = whole_share(*found.plan.cpu_attention + least, found);
            trials.push_back(std::move(attention));
          }
          if (!found.plan.cpu_linear.empty() && !r_.given.cpu_linear) {
            FoundPlan linear = found;
            linear.plan.cpu_linear.front().add(way);
            trials.push_back(std::move(linear));
          }
          if (found.plan.activations.device < 1 && !r_.given.activations) {
            FoundPlan rows = found;
            set_rows(rows, found.plan.activations.device + way, found.needs.layout.max_tokens);
            trials.push_back(std::move(rows));
          }
        }
        for (FoundPlan& trial : trials) {
          if (!settle(trial)) continue;
          price(trial, PriceBy::kSimulator);
          if (score(trial) < score(found) * 0.9995) {
            found = std::move(trial);
            better = true;
          }
        }
      }
    }
  }

  const SearchRequest& r_;
  bool apart_;
  Tier embeddings_;
  int chunk_;
  std::vector<FoundPlan> found_;
  std::optional<FoundPlan> best_by_rule_;  // simulated in any case
};

}  // namespace

void GivenFields::apply_to(Plan& plan) const {
  if (weights) plan.weights = *weights;
  if (kv) plan.kv = *kv;
  if (activations) plan.activations = *activations;
  if (embeddings) plan.embeddings = *embeddings;
  if (schedule) plan.schedule = *schedule;
  if (attention) plan.attention = *attention;
  if (cpu_attention) plan.cpu_attention = cpu_attention;
  if (cpu_linear) plan.cpu_linear = *cpu_linear;
  if (micro_batch) plan.micro_batch = *micro_batch;
  if (micro_batches) plan.micro_batches = *micro_batches;
  if (!overlap) plan.overlap = false;
}

bool fits(const Footprint& needs, const DeviceTraits& traits, const Budgets& budgets) {
  const bool apart = !traits.host_visible;
  const MemoryNeeds most = most_needed(needs, apart, budgets.host_is_limited);
  if (most.device > budgets.device || most.host > budgets.host || most.disk > budgets.disk)
    return false;
  // A sequence's pages, and what a micro-batch writes, should find room on the device.
  const RunLayout& layout = needs.layout;
  const int64_t wanted = blocks_for_tokens(layout.micro_tokens) + layout.sequence_blocks;
  return layout.staging_blocks >= std::min<int64_t>(wanted, layout.host_blocks);
}

std::vector<FoundPlan> search_plans(const SearchRequest& request, int most) {
  SPW_CHECK(request.workload.requests() > 0, kInvalidArgument, "a workload without requests");
  return Search(request).run(static_cast<size_t>(most));
}

}  // namespace spillway
