// SPDX-License-Identifier: Apache-2.0
// Lengths of answers in ten buckets, and how likely each of them is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway {

inline constexpr size_t kLengthBuckets = 10;

// Where buckets begin and end. A length on an edge belongs to the bucket above it, one beyond all
// of them to the last.
class LengthBuckets {
 public:
  // Equal widths up to `most` tokens (S3, section 3).
  static LengthBuckets linear(double most);
  // Each larger than the one before by the same factor, from `first` to `most` tokens.
  static LengthBuckets geometric(double first, double most);
  // For answers of which nothing is known yet: from a short sentence to all that there can be.
  static LengthBuckets of_unknown(int64_t most_tokens);
  // Each with a tenth of these lengths, which are not empty.
  static LengthBuckets equal_frequency(std::span<const int64_t> lengths);
  // As edges() gave them. Throws kInvalidArgument where they do not ascend.
  static LengthBuckets from_edges(std::span<const double, kLengthBuckets> edges);

  size_t bucket_of(int64_t tokens) const;
  double begin_of(size_t bucket) const { return bucket == 0 ? 0 : edges_[bucket - 1]; }
  double end_of(size_t bucket) const { return edges_[bucket]; }
  // Where each ends.
  const std::array<double, kLengthBuckets>& edges() const { return edges_; }

 private:
  std::array<double, kLengthBuckets> edges_ = {};
};

// How likely an answer's lengths are. Inside a bucket all are the same to it.
class LengthDistribution {
 public:
  // Shares of 1. Nothing is longer than `most_tokens`; 0: nothing is known of that.
  LengthDistribution(const LengthBuckets& buckets, const std::array<double, kLengthBuckets>& shares,
                     int64_t most_tokens = 0)
      : buckets_(buckets), shares_(shares), most_tokens_(most_tokens) {}

  size_t likeliest() const;  // of its buckets
  double share(size_t bucket) const { return shares_[bucket]; }
  double mean() const;
  // At least 1: with this probability the answer is not longer. What is to be reserved for it.
  int64_t quantile(double probability) const;
  // Nothing is longer than that; 0: as it is.
  LengthDistribution up_to(int64_t most_tokens) const { return {buckets_, shares_, most_tokens}; }
  // The same in other buckets.
  LengthDistribution in(const LengthBuckets& others) const;

 private:
  double share_below(double tokens) const;
  double bounded(double tokens) const;

  LengthBuckets buckets_;
  std::array<double, kLengthBuckets> shares_;
  int64_t most_tokens_;
};

}  // namespace spillway
