// SPDX-License-Identifier: Apache-2.0
// Ten buckets of answer lengths, and a probability distribution over them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway {

inline constexpr size_t kLengthBuckets = 10;

// Holds the edges of the buckets. A length on an edge belongs to the bucket above it, a length
// beyond the last edge to the last bucket.
class LengthBuckets {
 public:
  // All buckets have equal widths, up to `most` tokens (S3, section 3).
  static LengthBuckets linear(double most);
  // Each edge is larger than the one before by the same factor, from `first` to `most` tokens.
  static LengthBuckets geometric(double first, double most);
  // For a model whose answers are unknown as yet: geometric, from 16 tokens to `most_tokens`.
  static LengthBuckets of_unknown(int64_t most_tokens);
  // Each bucket gets a tenth of these lengths, which must not be empty.
  static LengthBuckets equal_frequency(std::span<const int64_t> lengths);
  // Restores buckets from their edges(). Throws kInvalidArgument if the edges do not ascend.
  static LengthBuckets from_edges(std::span<const double, kLengthBuckets> edges);

  size_t bucket_of(int64_t tokens) const;
  double begin_of(size_t bucket) const { return bucket == 0 ? 0 : edges_[bucket - 1]; }
  double end_of(size_t bucket) const { return edges_[bucket]; }
  // Returns the end of each bucket.
  const std::array<double, kLengthBuckets>& edges() const { return edges_; }

 private:
  std::array<double, kLengthBuckets> edges_ = {};
};

// How likely each length of an answer is. Within a bucket all lengths are equally likely.
class LengthDistribution {
 public:
  // `shares` add up to 1. No answer is longer than `most_tokens`; 0: there is no known limit.
  LengthDistribution(const LengthBuckets& buckets, const std::array<double, kLengthBuckets>& shares,
                     int64_t most_tokens = 0)
      : buckets_(buckets), shares_(shares), most_tokens_(most_tokens) {}

  size_t likeliest() const;  // index of the most probable bucket
  double share(size_t bucket) const { return shares_[bucket]; }
  double mean() const;
  // Returns the length, at least 1, that the answer does not exceed with this probability: how much
  // KV cache to reserve for it.
  int64_t quantile(double probability) const;
  // Returns the distribution with lengths capped at `most_tokens`; 0: not capped.
  LengthDistribution up_to(int64_t most_tokens) const { return {buckets_, shares_, most_tokens}; }
  // Returns the same distribution over other buckets.
  LengthDistribution in(const LengthBuckets& others) const;

 private:
  double share_below(double tokens) const;
  double bounded(double tokens) const;

  LengthBuckets buckets_;
  std::array<double, kLengthBuckets> shares_;
  int64_t most_tokens_;
};

}  // namespace spillway
