// SPDX-License-Identifier: Apache-2.0
#include "plan/linear_shares.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace spillway {
namespace {

constexpr double kLargeTransfer = 1 << 30;  // whose rate does not grow any more
constexpr int64_t kSome = 64;               // of a batch that is not full, or a short prompt

// Seconds of all that streams from host memory, if one of them did it alone.
struct Alone {
  double cpu = 0, link = 0;
};

Alone seconds_alone(const Hardware& h, const Model& model, const std::vector<Tier>& homes,
                    double tokens) {
  Alone alone;
  for (size_t i = 0; i < homes.size(); ++i) {
    const BoundWeight& weight = model.weights[i];
    if (weight.slot.layer < 0 || weight.slot.is_vector() || homes[i] != Tier::kHost) continue;
    const auto bytes = static_cast<double>(weight.bytes());
    const auto elements =
        static_cast<double>(weight.slot.rows) * static_cast<double>(weight.slot.cols);
    const auto source =
        is_quantized(weight.dtype) ? Hardware::Source::kPageable : Hardware::Source::kPinned;
    alone.cpu += linear_seconds(h.host, weight.dtype, tokens, elements, bytes) / h.cpu_beside_link;
    alone.link += bytes / (h.link_beside_cpu * h.to_device_rate(kLargeTransfer, source));
  }
  return alone;
}

}  // namespace

std::vector<CpuLinearShare> balanced_linear_shares(const Hardware& hardware, const Model& model,
                                                   const Plan& plan, const RunLayout& layout,
                                                   int64_t sequences, const Prediction& predicted) {
  std::vector<CpuLinearShare> shares;
  const std::vector<Tier> homes =
      weight_homes(/*host_visible=*/!hardware.has_device(), model, plan.weight_plan());
  const int64_t decoding =
      std::min<int64_t>(layout.micro_tokens, plan.micro_batch > 0 ? plan.micro_batch : sequences);
  std::set<int64_t> tokens{decoding, std::max<int64_t>(decoding, layout.micro_tokens)};
  if (decoding < kSome && kSome < layout.micro_tokens) tokens.insert(kSome);
  for (const int64_t at : tokens) {
    Alone alone = seconds_alone(hardware, model, homes, static_cast<double>(at));
    if (alone.link <= 0) return {};
    // Weights come once for all micro-batches of a step, and the CPU multiplies for each.
    const int64_t of_step = at == decoding              ? sequences
                            : at == layout.micro_tokens ? layout.max_tokens
                                                        : at;
    alone.cpu *= std::ceil(static_cast<double>(of_step) / static_cast<double>(at));
    double attention = 0, kv = 0;
    if (at == decoding) {
      const StepEstimate& step = predicted.decode_step;
      attention = step.busy[static_cast<size_t>(Worker::kCpu)];
      kv = std::max(0.0, step.busy[static_cast<size_t>(Worker::kToDevice)] - alone.link);
    }
    const double share = (alone.link + kv - attention) / (alone.cpu + alone.link);
    // Whole percents.
    shares.push_back({static_cast<int>(at), std::floor(std::clamp(share, 0.0, 1.0) * 100) / 100});
  }
  while (!shares.empty() && shares.back().share == 0) shares.pop_back();
  return shares;
}

}  // namespace spillway
