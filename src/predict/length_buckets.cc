// SPDX-License-Identifier: Apache-2.0
#include "predict/length_buckets.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace spillway {

LengthBuckets LengthBuckets::linear(double most) {
  SPW_CHECK(most >= 1, kInvalidArgument, "answers of at most {} tokens have no buckets", most);
  LengthBuckets buckets;
  for (size_t i = 0; i < kLengthBuckets; ++i)
    buckets.edges_[i] = most * static_cast<double>(i + 1) / kLengthBuckets;
  return buckets;
}

LengthBuckets LengthBuckets::geometric(double first, double most) {
  SPW_CHECK(first >= 1 && most >= first, kInvalidArgument,
            "buckets from {} to {} tokens hold no answers", first, most);
  LengthBuckets buckets;
  for (size_t i = 0; i < kLengthBuckets; ++i)
    buckets.edges_[i] =
        first * std::pow(most / first, static_cast<double>(i) / (kLengthBuckets - 1));
  return buckets;
}

LengthBuckets LengthBuckets::of_unknown(int64_t most_tokens) {
  constexpr double kShort = 16;
  return geometric(kShort, std::max(2 * kShort, static_cast<double>(most_tokens)));
}

LengthBuckets LengthBuckets::equal_frequency(std::span<const int64_t> lengths) {
  SPW_CHECK(!lengths.empty(), kInvalidArgument, "no lengths to make buckets of");
  std::vector<int64_t> sorted(lengths.begin(), lengths.end());
  std::ranges::sort(sorted);
  LengthBuckets buckets;
  for (size_t i = 0; i + 1 < kLengthBuckets; ++i)
    buckets.edges_[i] = static_cast<double>(sorted[sorted.size() * (i + 1) / kLengthBuckets]);
  buckets.edges_.back() = static_cast<double>(sorted.back() + 1);
  return buckets;
}

LengthBuckets LengthBuckets::from_edges(std::span<const double, kLengthBuckets> edges) {
  double before = 0;
  for (const double edge : edges) {
    SPW_CHECK(std::isfinite(edge) && edge >= before && edge <= 1e12, kInvalidArgument,
              "an edge of {} tokens behind one of {}", edge, before);
    before = edge;
  }
  SPW_CHECK(before >= 1, kInvalidArgument, "buckets end at {} tokens", before);
  LengthBuckets buckets;
  std::ranges::copy(edges, buckets.edges_.begin());
  return buckets;
}

size_t LengthBuckets::bucket_of(int64_t tokens) const {
  const auto last = edges_.end() - 1;  // the last bucket is open-ended
  return static_cast<size_t>(std::upper_bound(edges_.begin(), last, static_cast<double>(tokens)) -
                             edges_.begin());
}

size_t LengthDistribution::likeliest() const {
  return static_cast<size_t>(std::ranges::max_element(shares_) - shares_.begin());
}

double LengthDistribution::bounded(double tokens) const {
  return most_tokens_ > 0 ? std::min(tokens, static_cast<double>(most_tokens_)) : tokens;
}

double LengthDistribution::mean() const {
  double mean = 0;
  for (size_t i = 0; i < kLengthBuckets; ++i)
    mean += shares_[i] * bounded((buckets_.begin_of(i) + buckets_.end_of(i)) / 2);
  return std::max(1.0, mean);
}

int64_t LengthDistribution::quantile(double probability) const {
  double below = 0;
  double tokens = buckets_.end_of(kLengthBuckets - 1);
  for (size_t i = 0; i < kLengthBuckets; ++i) {
    if (below + shares_[i] >= probability && shares_[i] > 0) {
      const double part = std::clamp((probability - below) / shares_[i], 0.0, 1.0);
      tokens = buckets_.begin_of(i) + part * (buckets_.end_of(i) - buckets_.begin_of(i));
      break;
    }
    below += shares_[i];
  }
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(bounded(tokens))));
}

double LengthDistribution::share_below(double tokens) const {
  double below = 0;
  for (size_t i = 0; i < kLengthBuckets; ++i) {
    const double begin = buckets_.begin_of(i), end = buckets_.end_of(i);
    if (tokens >= end) {
      below += shares_[i];
    } else {
      if (tokens > begin) below += shares_[i] * (tokens - begin) / (end - begin);
      break;
    }
  }
  return below;
}

LengthDistribution LengthDistribution::in(const LengthBuckets& others) const {
  std::array<double, kLengthBuckets> shares{};
  double below = 0;
  for (size_t i = 0; i < kLengthBuckets; ++i) {
    const double up_to = i + 1 < kLengthBuckets ? share_below(others.end_of(i)) : 1;
    shares[i] = std::max(0.0, up_to - below);
    below = up_to;
  }
  return {others, shares, most_tokens_};
}

}  // namespace spillway
