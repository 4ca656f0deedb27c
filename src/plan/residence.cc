// SPDX-License-Identifier: Apache-2.0
#include "plan/residence.h"

#include <algorithm>
#include <functional>
#include <string>

#include "base/error.h"
#include "plan/linear_shares.h"
#include "plan/link_prices.h"

namespace spillway {

std::vector<ResidenceGain> residence_gains(const Hardware& hardware, const Model& model,
                                           double tokens) {
  std::vector<ResidenceGain> gains;  // in the order of a layer's ops
  for (const SplitOp& op : split_ops(model)) {
    if (op.layer == model.spec.layer_count()) continue;  // its home is that of the embeddings
    auto known = std::ranges::find(gains, op.name, &ResidenceGain::op);
    if (known == gains.end()) known = gains.insert(known, {.op = op.name});
    ResidenceGain& gain = *known;
    for (const size_t i : op.weights) gain.bytes += static_cast<double>(model.weights[i].bytes());
    const SplitCurve curve = split_curve_of(hardware, op.shape, tokens);
    const double share = curve.crossing();
    gain.computing += std::max(curve.cpu_s(share), curve.link.at(1 - share));
    if (share > 0) {
      gain.joining += LinkPrices(hardware).hand_over(tokens, static_cast<double>(op.shape.cols),
                                                     share * static_cast<double>(op.shape.rows));
    }
  }
  std::ranges::stable_sort(gains, std::greater(), &ResidenceGain::per_byte);
  return gains;
}

namespace {

// Chooses `count` of the layers, evenly spread.
std::vector<LayerRange> spread_layers(int layers, int count) {
  std::vector<LayerRange> ranges;
  for (int i = 0; i < count; ++i) {
    const int layer = static_cast<int>((int64_t{2} * i + 1) * layers / (2 * count));
    if (!ranges.empty() && ranges.back().last + 1 == layer) {
      ranges.back().last = layer;
    } else {
      ranges.push_back({layer, layer});
    }
  }
  return ranges;
}

std::vector<std::string> matrices_of(const Model& model, std::string_view op) {
  std::vector<std::string> names;
  for (const BoundWeight& weight : model.weights) {
    const WeightSlot& slot = weight.slot;
    if (slot.layer == 0 && slot.is_layer_matrix() && slot.op_name == op)
      names.emplace_back(slot.name);
  }
  return names;
}

}  // namespace

Plan with_residence_by_gain(const Hardware& hardware, const Model& model, const Plan& plan,
                            int64_t sequences) {
  const TierShares& shares = plan.weights;
  SPW_CHECK(plan.overrides.empty() && shares.disk <= 0, kInvalidArgument,
            "residence by gain chooses which matrices are on the GPU and which in host memory; "
            "leave out the plan's overrides and weights on disk, or its \"residence\"");
  Plan placed = plan;
  placed.residence = Residence::kEven;
  if (shares.device <= 0 || shares.host <= 0) return placed;
  // A share may be for any number of tokens.
  if (!plan.cpu_linear.empty())
    sequences = std::min<int64_t>(sequences, plan.cpu_linear.front().tokens);
  const std::vector<ResidenceGain> gains =
      residence_gains(hardware, model, static_cast<double>(sequences));
  double all = 0;
  for (const ResidenceGain& gain : gains) all += gain.bytes;
  double left = shares.device * all, others = all;
  const auto put = [&](std::string_view op, const std::vector<LayerRange>& layers) {
    for (const std::string& matrix : matrices_of(model, op))
      placed.overrides.push_back({.layers = layers, .matrix = matrix, .home = Tier::kDevice});
  };
  size_t whole = 0;
  for (; whole < gains.size() && gains[whole].bytes <= left; ++whole) {
    put(gains[whole].op, {});
    left -= gains[whole].bytes;
    others -= gains[whole].bytes;
  }
  // If the remaining ops gain the same, their layers share the rest of the device evenly; otherwise
  // the first of these ops gets it.
  const bool alike =
      whole + 1 < gains.size() && gains[whole + 1].per_byte() > 0.99 * gains[whole].per_byte();
  if (whole < gains.size() && !alike) {
    const double each = gains[whole].bytes / model.spec.layer_count();
    const int count = static_cast<int>(left / each);
    if (count > 0) {
      put(gains[whole].op, spread_layers(model.spec.layer_count(), count));
      left -= count * each;
      others -= count * each;
    }
  }
  const double device = others > 0 ? std::clamp(left / others, 0.0, 1.0) : 0;
  placed.weights = {device, 1 - device, 0};
  return placed;
}

}  // namespace spillway
