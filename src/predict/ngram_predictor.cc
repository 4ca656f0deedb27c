// SPDX-License-Identifier: Apache-2.0
#include "predict/ngram_predictor.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace spillway {
namespace {

// Found by cross-validation on Alpaca's answers; see docs/notes/scheduling.md.
constexpr float kRate = 0.1F, kDecay = 3e-3F, kFirstGradient = 0.1F;

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

void softmax(std::span<float> values) {
  const float most = *std::ranges::max_element(values);
  float sum = 0;
  for (float& value : values) sum += value = std::exp(value - most);
  for (float& value : values) value /= sum;
}

}  // namespace

NgramPredictor::NgramPredictor(const LengthBuckets& buckets, size_t more_slots)
    : buckets_(buckets),
      weights_((kFeatureSlots + more_slots) * kRow),
      gradients_(weights_.size(), kFirstGradient) {}

NgramPredictor::Outputs NgramPredictor::outputs(std::span<const PromptFeature> features) const {
  Outputs sums{};
  for (const PromptFeature& feature : features) {
    const float* const row = &weights_[feature.slot * kRow];
    for (size_t i = 0; i < kRow; ++i) sums[i] += row[i] * feature.value;
  }
  return sums;
}

LengthDistribution NgramPredictor::predict_from(std::span<const PromptFeature> features) const {
  Outputs out = outputs(features);
  const std::span<float> chosen(out.data(), kLengthBuckets);
  softmax(chosen);
  std::array<double, kLengthBuckets> shares{};
  double beyond = 1;  // probability that the answer goes beyond the edge before
  for (size_t i = 0; i < kLengthBuckets; ++i) {
    // An answer that goes beyond an edge goes beyond all edges before it, so `beyond` never grows.
    const double next =
        i < kEdges ? std::min<double>(beyond, sigmoid(out[kLengthBuckets + i])) : 0.0;
    shares[i] = (static_cast<double>(chosen[i]) + (beyond - next)) / 2;
    beyond = next;
  }
  return {buckets_, shares};
}

void NgramPredictor::learn_from(std::span<const PromptFeature> features, int64_t tokens) {
  const size_t right = buckets_.bucket_of(tokens);
  Outputs errors = outputs(features);
  softmax(std::span<float>(errors.data(), kLengthBuckets));
  errors[right] -= 1;
  for (size_t i = 0; i < kEdges; ++i)
    errors[kLengthBuckets + i] = sigmoid(errors[kLengthBuckets + i]) - (right > i ? 1.0F : 0.0F);
  errors[kOutputs] = 0;
  for (const PromptFeature& feature : features) {
    float* const weight = &weights_[feature.slot * kRow];
    float* const gradient = &gradients_[feature.slot * kRow];
    for (size_t i = 0; i < kRow; ++i) {
      const float slope = errors[i] * feature.value + kDecay * weight[i];
      gradient[i] += slope * slope;
      weight[i] -= kRate * slope / std::sqrt(gradient[i]);
    }
  }
  ++examples_;
}

// Halved weights make the predictor less sure, as it should be. AdaGrad's sums of squares only grow
// and slow down learning, so they start anew; otherwise old knowledge would stay.
void NgramPredictor::forget_half() {
  for (float& weight : weights_) weight /= 2;
  std::ranges::fill(gradients_, kFirstGradient);
}

void NgramPredictor::restore(std::span<const float> weights, std::span<const float> gradients,
                             uint64_t examples) {
  SPW_CHECK(weights.size() == weights_.size() && gradients.size() == gradients_.size(),
            kInvalidArgument, "a predictor has {} weights, not {}", weights_.size(),
            weights.size());
  SPW_CHECK(std::ranges::all_of(weights, [](float w) { return std::isfinite(w); }),
            kInvalidArgument, "a weight is not a number");
  SPW_CHECK(std::ranges::all_of(gradients, [](float g) { return std::isfinite(g) && g > 0; }),
            kInvalidArgument, "a sum of squares is not positive");
  std::ranges::copy(weights, weights_.begin());
  std::ranges::copy(gradients, gradients_.begin());
  examples_ = examples;
}

}  // namespace spillway
