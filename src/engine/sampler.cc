// SPDX-License-Identifier: Apache-2.0
#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace spillway {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void check_finite(const char* name, float value, float low, float high) {
  SPW_CHECK(std::isfinite(value) && value >= low && value <= high, kInvalidArgument,
            "{} is {}; give {} to {}", name, value, low, high);
}

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

}  // namespace

void validate(const SamplingParams& params, int64_t vocab_size) {
  check_finite("temperature", params.temperature, 0, 100);
  check_finite("top-p", params.top_p, 0, 1);
  check_finite("min-p", params.min_p, 0, 1);
  check_finite("repetition penalty", params.repetition_penalty, 0.01F, 100);
  check_finite("presence penalty", params.presence_penalty, -100, 100);
  check_finite("frequency penalty", params.frequency_penalty, -100, 100);
  SPW_CHECK(params.top_k >= 0, kInvalidArgument, "top-k is {}; give 0 (all) or more", params.top_k);
  SPW_CHECK(params.repetition_window >= 0, kInvalidArgument,
            "repetition window is {}; give 0 (all tokens) or more", params.repetition_window);
  SPW_CHECK(params.logprobs >= -1 && params.logprobs <= kMostLogprobs, kInvalidArgument,
            "logprobs is {}; give 0 to {}", params.logprobs, kMostLogprobs);
  for (const auto& [id, bias] : params.logit_bias) {
    SPW_CHECK(id >= 0 && id < vocab_size, kInvalidArgument,
              "logit bias for token {}, which is outside the vocabulary of {} tokens", id,
              vocab_size);
    check_finite("logit bias", bias, -1000, 1000);
  }
}

double counter_uniform(uint64_t seed, uint64_t counter) {
  const uint64_t bits =
      mix(mix(seed + 0x9e3779b97f4a7c15U) ^ mix(counter * 0xd1342543de82ef95U + 1));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

bool are_usable(std::span<const float> logits) {
  // The loop has no branch, and its flags have 32 bits like the values, so that compilers vectorize
  // it.
  int32_t wrong = 0, some = 0;
  for (const float value : logits) {
    wrong |= value < std::numeric_limits<float>::infinity() ? 0 : 1;  // also NaN
    some |= value > kNever ? 1 : 0;
  }
  return wrong == 0 && some != 0;
}

Sampler::Sampler(SamplingParams params, std::span<const TokenId> prompt)
    : params_(std::move(params)) {
  for (const TokenId id : prompt) see(id);
}

void Sampler::see(TokenId id) {
  if (params_.repetition_penalty == 1) return;
  ++seen_[id];
  if (params_.repetition_window == 0) return;
  window_.push_back(id);
  if (window_.size() <= static_cast<size_t>(params_.repetition_window)) return;
  const auto oldest = seen_.find(window_.front());
  if (--oldest->second == 0) seen_.erase(oldest);
  window_.pop_front();
}

void Sampler::collect_adjustments() {
  // Few tokens are adjusted, so a map of them is small; each is adjusted once.
  std::unordered_map<TokenId, LogitAdjustment> by_id;
  const auto at = [&](TokenId id) -> LogitAdjustment& {
    LogitAdjustment& adjustment = by_id[id];
    adjustment.id = id;
    return adjustment;
  };
  for (const auto& [id, bias] : params_.logit_bias) at(id).bias += bias;
  if (params_.repetition_penalty != 1) {
    for (const auto& [id, count] : seen_) at(id).repetition = params_.repetition_penalty;
  }
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0) {
    for (const auto& [id, count] : answered_) {
      at(id).penalty =
          params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
    }
  }
  if (accepted_ < forbidden_until_) {
    for (const TokenId id : forbidden_) at(id).bias = kNever;
  }
  adjustments_.clear();
  for (const auto& [id, adjustment] : by_id) adjustments_.push_back(adjustment);
}

void Sampler::adjust(std::span<const float> logits) {
  logits_.assign(logits.begin(), logits.end());
  collect_adjustments();
  for (const LogitAdjustment& adjustment : adjustments_) {
    float& logit = logits_.at(static_cast<size_t>(adjustment.id));
    logit += adjustment.bias;
    logit = logit > 0 ? logit / adjustment.repetition : logit * adjustment.repetition;
    logit -= adjustment.penalty;
  }
}

// Orders the most likely first, equal ones by id, so that the order never depends on the sort.
bool Sampler::more_likely(const Candidate& a, const Candidate& b) {
  return a.scaled != b.scaled ? a.scaled > b.scaled : a.id < b.id;
}

TokenId Sampler::draw(int64_t position) {
  candidates_.clear();
  float top = kNever;
  for (const float logit : logits_) {
    if (logit > top) top = logit;
  }
  for (size_t i = 0; i < logits_.size(); ++i) {
    // More than 80 temperatures below the top: a probability of e^-80 is never drawn.
    const float scaled = (logits_[i] - top) / params_.temperature;
    if (scaled > -80) candidates_.push_back({static_cast<TokenId>(i), scaled});
  }
  SPW_ASSERT(!candidates_.empty());
  const bool sorted = params_.top_k > 0 || params_.top_p < 1;
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + params_.top_k, candidates_.end(),
                     more_likely);
    candidates_.resize(static_cast<size_t>(params_.top_k));
  }
  if (sorted) std::sort(candidates_.begin(), candidates_.end(), more_likely);

  double total = 0;
  for (const Candidate& c : candidates_) total += std::exp(static_cast<double>(c.scaled));
  size_t kept = candidates_.size();
  if (params_.top_p < 1) {
    double sum = 0;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      sum += std::exp(static_cast<double>(candidates_[i].scaled));
      if (sum >= params_.top_p * total) {
        kept = i + 1;
        break;
      }
    }
    candidates_.resize(kept);
  }
  if (params_.min_p > 0) {
    const float least = std::log(params_.min_p);  // the most likely one has 0
    std::erase_if(candidates_, [&](const Candidate& c) { return c.scaled < least; });
  }

  // The draw goes through the ids in ascending order, as on devices that do not sort.
  if (sorted) {
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }
  total = 0;
  for (const Candidate& c : candidates_) total += std::exp(static_cast<double>(c.scaled));
  double left = counter_uniform(params_.seed, static_cast<uint64_t>(position)) * total;
  for (const Candidate& c : candidates_) {
    left -= std::exp(static_cast<double>(c.scaled));
    if (left < 0) return c.id;
  }
  return candidates_.back().id;
}

SampledToken Sampler::sample(std::span<const float> logits, int64_t position) {
  adjust(logits);
  SampledToken token;
  if (!are_usable(logits_)) return token;
  const auto best = [&] { return std::max_element(logits_.begin(), logits_.end()); };
  token.id =
      params_.temperature > 0 ? draw(position) : static_cast<TokenId>(best() - logits_.begin());
  if (wants_logprobs()) token.logprobs = compute_logprobs(logits, token.id, params_.logprobs);
  return token;
}

SampleRow Sampler::sample_row(int64_t position) {
  collect_adjustments();
  return {.temperature = params_.temperature,
          .top_k = params_.top_k,
          .top_p = params_.top_p,
          .min_p = params_.min_p,
          .uniform = counter_uniform(params_.seed, static_cast<uint64_t>(position)),
          .logprobs = params_.logprobs,
          .adjustments = adjustments_};
}

// Copies all but the scratch memory of draws, which is as large as the vocabulary.
Sampler Sampler::fork() const {
  Sampler other;
  other.params_ = params_;
  other.accepted_ = accepted_;
  other.forbidden_until_ = forbidden_until_;
  other.forbidden_ = forbidden_;
  other.seen_ = seen_;
  other.window_ = window_;
  other.answered_ = answered_;
  return other;
}

void Sampler::forbid_until(int64_t accepted, std::vector<TokenId> ids) {
  forbidden_until_ = accepted;
  forbidden_ = std::move(ids);
}

void Sampler::accept(TokenId id) {
  ++accepted_;
  see(id);
  ++answered_[id];
}

}  // namespace spillway
