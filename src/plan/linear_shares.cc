// SPDX-License-Identifier: Apache-2.0
#include "plan/linear_shares.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "plan/link_prices.h"
#include "plan/streaming_schedule.h"
#include "plan/weight_homes.h"

namespace spillway {
namespace {

constexpr int64_t kSome = 64;        // tokens of a batch that is not full, or of a short prompt
constexpr int64_t kFew = 1;          // tokens whose products are bound by memory alone
constexpr double kSameShare = 0.01;  // closer shares make no noticeable difference
// If the CPU attends for more than this share of a step, it gets no rows of linear layers, because
// the device would wait for it at every op. H200, OPT-13B with 4-bit weights, 64 sequences in host
// memory: 478 tokens/s, with 5% of the rows 338 (one run each).
constexpr double kMostAttending = 0.1;

// Steps with drafts have a few tokens of each sequence. Products of matrix slices are not measured
// at so small numbers, so the CPU is assumed to be slower there than by the rates of whole
// matrices, which hold at kFew.
constexpr int64_t kMostDrafting = 16;
constexpr double kRateOfSlices = 0.7;

// Rounds a share down to whole percent, or to 0 if it is too small to be worth the transfers.
double whole_percents(double share) {
  constexpr double kLeastShare = 0.03;
  return share < kLeastShare ? 0 : std::floor(std::min(share, 1.0) * 100) / 100;
}

// Returns a curve by the machine's rates (equation 9), without the fixed cost of an op.
SplitCurve by_rates(const Hardware& h, const SplitShape& shape, double tokens) {
  const double elements = static_cast<double>(shape.rows) * static_cast<double>(shape.cols);
  const auto bytes = static_cast<double>(row_bytes(shape.type, shape.cols) * shape.rows);
  const auto source =
      is_quantized(shape.type) ? Hardware::Source::kPageable : Hardware::Source::kPinned;
  return {
      .shape = shape,
      .tokens = static_cast<int64_t>(tokens),
      .cpu = {0, linear_seconds(h.host, shape.type, tokens, elements, bytes) / h.cpu_beside_link},
      .link = {0, LinkPrices(h).bulk_up(bytes, source)}};
}

// The sum of the curves of several ops, including the time of giving work to the CPU and getting
// its results.
struct Sum {
  SplitLine cpu = {}, link = {};
  void add(const Hardware& h, const SplitCurve& of, double tokens, double batches) {
    const LinkPrices links(h);
    const double fixed = links.hand_over(tokens, static_cast<double>(of.shape.cols), 0),
                 with_all = links.hand_over(tokens, static_cast<double>(of.shape.cols),
                                            static_cast<double>(of.shape.rows));
    cpu.fixed_s += batches * (of.cpu.fixed_s + fixed);
    cpu.all_s += batches * (of.cpu.all_s + with_all - fixed);
    link.fixed_s += of.link.fixed_s;
    link.all_s += of.link.all_s;
  }
  // Returns the share with which both finish together if the link has this much additional work.
  double crossing(double more_link = 0) const {
    const double both = cpu.all_s + link.all_s;
    return both > 0 ? (link.fixed_s + link.all_s + more_link - cpu.fixed_s) / both : 0;
  }
};

}  // namespace

std::vector<SplitOp> split_ops(const Model& model) {
  std::vector<SplitOp> ops;
  int64_t most = 0;  // bytes of the last op's largest matrix
  const auto add = [&](size_t number, int layer, std::string_view name) {
    const BoundWeight& weight = model.weights[number];
    if (ops.empty() || ops.back().layer != layer || ops.back().name != name) {
      ops.push_back({.layer = layer, .name = name});
      most = 0;
    }
    SplitOp& op = ops.back();
    op.weights.push_back(number);
    op.shape.rows += weight.slot.rows;
    op.shape.cols = weight.slot.cols;
    if (weight.bytes() > most) {
      most = weight.bytes();
      op.shape.type = weight.dtype;
    }
  };
  for (size_t i = 0; i < model.weights.size(); ++i) {
    const WeightSlot& slot = model.weights[i].slot;
    if (slot.is_layer_matrix()) add(i, slot.layer, slot.op_name);
  }
  if (const BoundWeight* const head = try_head_of(model); head != nullptr) {
    add(static_cast<size_t>(head - model.weights.data()), model.spec.layer_count(),
        model.spec.head->ops.back().name);
  }
  return ops;
}

SplitCurve split_curve_of(const Hardware& hardware, const SplitShape& shape, double tokens) {
  const SplitCurve* const measured = try_split_curve(hardware.splits, shape, tokens);
  return measured != nullptr ? *measured : by_rates(hardware, shape, tokens);
}

double balanced_share(const Hardware& hardware, const SplitShape& shape, double tokens) {
  return by_rates(hardware, shape, tokens).crossing();
}

namespace {

// Returns the ops whose matrices are all in host memory, or all on disk.
std::vector<SplitOp> ops_not_on_device(const Model& model, std::span<const Tier> homes) {
  std::vector<SplitOp> ops = split_ops(model);
  std::erase_if(ops, [&](const SplitOp& op) {
    const Tier home = homes[op.weights.front()];
    return home == Tier::kDevice ||
           std::ranges::any_of(op.weights, [&](size_t i) { return homes[i] != home; });
  });
  return ops;
}

}  // namespace

double expected_cpu_rate(const Hardware& hardware, const Model& model, std::span<const Tier> homes,
                         const Plan& plan, double tokens) {
  const size_t entry = schedule_for(plan.cpu_linear, static_cast<int64_t>(tokens));
  if (entry >= plan.cpu_linear.size()) return 0;
  double bytes = 0, seconds = 0;
  for (const SplitOp& op : ops_not_on_device(model, homes)) {
    const double share = plan.cpu_linear[entry].of(op.name);
    for (const size_t i : op.weights)
      bytes += share * static_cast<double>(model.weights[i].bytes());
    seconds += split_curve_of(hardware, op.shape, tokens).cpu_s(share);
  }
  return seconds > 0 ? bytes / seconds : 0;
}

std::vector<CpuLinearShare> balanced_linear_shares(const Hardware& hardware, const Model& model,
                                                   std::span<const Tier> homes, const Plan& plan,
                                                   const RunLayout& layout, int64_t sequences,
                                                   const Prediction& predicted) {
  std::vector<CpuLinearShare> shares;
  const std::vector<SplitOp> ops = ops_not_on_device(model, homes);
  const StepEstimate& decode = predicted.decode_step;
  const bool attends =
      decode.busy[static_cast<size_t>(Worker::kCpu)] > kMostAttending * decode.seconds;
  if (ops.empty() || attends) return {};
  const int64_t decoding =
      std::min<int64_t>(layout.micro_tokens, plan.micro_batch > 0 ? plan.micro_batch : sequences);
  std::set<int64_t> tokens{decoding, std::max<int64_t>(decoding, layout.micro_tokens)};
  if (decoding < kSome && kSome < layout.micro_tokens) tokens.insert(kSome);
  const int64_t drafting = std::min<int64_t>(
      layout.micro_tokens, rows_with_drafts(static_cast<int>(decoding), layout.draft_tokens));
  const bool has_drafts = decoding == kFew && kFew < drafting && drafting <= kMostDrafting;
  if (has_drafts) tokens.insert(drafting);
  for (const int64_t at : tokens) {
    // Weights are copied once for all micro-batches of a step, while the CPU multiplies for each.
    const int64_t of_step = at == decoding              ? sequences
                            : at == layout.micro_tokens ? layout.max_tokens
                                                        : at;
    const double batches = std::ceil(static_cast<double>(of_step) / static_cast<double>(at));
    Sum all;
    struct Module {
      Sum sum;
      bool measured = false;
    };
    std::map<std::string_view, Module> modules;
    bool all_measured = true;
    for (const SplitOp& op : ops) {
      Module& module = modules[op.name];
      SplitCurve curve = split_curve_of(hardware, op.shape, static_cast<double>(at));
      const bool is_measured =
          try_split_curve(hardware.splits, op.shape, static_cast<double>(at)) != nullptr;
      if (at > kFew && !is_measured) curve.cpu.all_s /= kRateOfSlices;
      all.add(hardware, curve, static_cast<double>(at), batches);
      module.sum.add(hardware, curve, static_cast<double>(at), batches);
      module.measured = is_measured;
      all_measured = all_measured && module.measured;
    }
    double else_on_link = 0;  // the link's other work, minus the time in which the CPU attends
    if (at == decoding || (has_drafts && at == drafting)) {
      const StepEstimate& step = predicted.decode_step;
      else_on_link =
          std::max(0.0, step.busy[static_cast<size_t>(Worker::kToDevice)] - all.link.all_s) -
          step.busy[static_cast<size_t>(Worker::kCpu)];
    }
    // With more than one token, slices of a matrix are multiplied at other rates than the whole
    // matrix, so shares are used only if those were measured. H200, 8 tokens: steps were 20 to 30%
    // slower with a guess.
    if (at > kFew && !all_measured && !(has_drafts && at == drafting)) continue;
    CpuLinearShare share{.tokens = static_cast<int>(at),
                         .share = whole_percents(all.crossing(else_on_link))};
    // Each measured module gets a share of its own, moved as much as the common share is by the
    // link's additional work.
    const double moved = all.crossing(else_on_link) - all.crossing();
    for (const auto& [name, module] : modules) {
      if (!module.measured) continue;
      const double own = whole_percents(module.sum.crossing() + moved);
      if (std::fabs(own - share.share) > kSameShare) share.modules[std::string(name)] = own;
    }
    shares.push_back(std::move(share));
  }
  while (!shares.empty() && !shares.back().any()) shares.pop_back();
  return shares;
}

}  // namespace spillway
