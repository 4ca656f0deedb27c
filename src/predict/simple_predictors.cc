// SPDX-License-Identifier: Apache-2.0
#include "predict/simple_predictors.h"

#include <numeric>
#include <string_view>

#include "base/error.h"

namespace spillway {
namespace {

// The key is a letter that says which, and then the text or the tokens' bytes.
std::string key_of(const LengthQuery& query) {
  std::string key(1, query.text.empty() ? 'i' : 't');
  if (!query.text.empty()) return key.append(query.text);
  return key.append(reinterpret_cast<const char*>(query.tokens.data()), query.tokens.size_bytes());
}

}  // namespace

LengthDistribution RunningMeanPredictor::predict_from(std::span<const PromptFeature>) const {
  // Counts one more answer, which is spread over all buckets.
  const auto all =
      1 + static_cast<double>(std::accumulate(answers_.begin(), answers_.end(), int64_t{0}));
  std::array<double, kLengthBuckets> shares{};
  for (size_t i = 0; i < kLengthBuckets; ++i)
    shares[i] = (static_cast<double>(answers_[i]) + 1.0 / kLengthBuckets) / all;
  return {buckets_, shares};
}

void RunningMeanPredictor::learn_from(std::span<const PromptFeature>, int64_t tokens) {
  ++answers_[buckets_.bucket_of(tokens)];
  ++examples_;
}

void RunningMeanPredictor::forget_half() {
  for (int64_t& answers : answers_) answers /= 2;
}

LengthDistribution OraclePredictor::predict(const LengthQuery& query) const {
  const auto known = answers_.find(key_of(query));
  SPW_CHECK(known != answers_.end(), kInvalidArgument,
            "the oracle was not told how long the answer to this prompt is");
  const auto tokens = static_cast<double>(known->second);
  // All probability is in a bucket that is one token wide.
  const std::array<double, kLengthBuckets> edges = {tokens - 1, tokens, tokens, tokens, tokens,
                                                    tokens,     tokens, tokens, tokens, tokens};
  return {LengthBuckets::from_edges(edges), {0, 1}, query.most_tokens};
}

void OraclePredictor::learn(const LengthQuery& query, int64_t tokens) {
  answers_[key_of(query)] = tokens < 1 ? 1 : tokens;
}

}  // namespace spillway
