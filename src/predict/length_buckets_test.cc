// SPDX-License-Identifier: Apache-2.0
#include "predict/length_buckets.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/test_scoped_folder.h"

namespace spillway {
namespace {

TEST(LengthBucketsTest, LinearOnesAreOfEqualWidthAndTheLastHasNoEnd) {
  const LengthBuckets buckets = LengthBuckets::linear(512);
  EXPECT_EQ(buckets.bucket_of(0), 0U);
  EXPECT_EQ(buckets.bucket_of(51), 0U);
  EXPECT_EQ(buckets.bucket_of(52), 1U);
  EXPECT_EQ(buckets.bucket_of(511), 9U);
  EXPECT_EQ(buckets.bucket_of(100'000), 9U);
}

TEST(LengthBucketsTest, OnesOfEqualFrequencyHaveATenthEach) {
  std::vector<int64_t> lengths(1000);
  std::iota(lengths.begin(), lengths.end(), int64_t{1});
  const LengthBuckets buckets = LengthBuckets::equal_frequency(lengths);
  std::vector<int> counts(kLengthBuckets);
  for (const int64_t length : lengths) ++counts[buckets.bucket_of(length)];
  for (const int count : counts) EXPECT_EQ(count, 100);
}

TEST(LengthBucketsTest, ManyEqualLengthsLeaveBucketsEmpty) {
  const std::vector<int64_t> lengths(50, 7);
  const LengthBuckets buckets = LengthBuckets::equal_frequency(lengths);
  EXPECT_EQ(buckets.bucket_of(7), 9U);
  EXPECT_EQ(buckets.bucket_of(6), 0U);
  EXPECT_EQ(buckets.end_of(9), 8);
}

TEST(LengthBucketsTest, EdgesMustAscend) {
  std::array<double, kLengthBuckets> edges = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(LengthBuckets::from_edges(edges).edges(), edges);
  edges[4] = 2;
  EXPECT_NE(error_of([&] { (void)LengthBuckets::from_edges(edges); }), "no error");
}

TEST(LengthDistributionTest, AQuantileIsWhatIsNotExceededSoOften) {
  std::array<double, kLengthBuckets> shares{};
  shares[0] = 0.5;
  shares[1] = 0.5;
  const LengthDistribution lengths(LengthBuckets::linear(100), shares);
  EXPECT_EQ(lengths.quantile(0.25), 5);
  EXPECT_EQ(lengths.quantile(0.5), 10);
  EXPECT_EQ(lengths.quantile(0.9), 18);
  EXPECT_EQ(lengths.quantile(1), 20);
  EXPECT_EQ(lengths.quantile(0), 1);
  EXPECT_DOUBLE_EQ(lengths.mean(), 10);
}

TEST(LengthDistributionTest, NothingIsLongerThanTheRequestAllows) {
  std::array<double, kLengthBuckets> shares{};
  shares[9] = 1;
  const LengthDistribution lengths(LengthBuckets::linear(1000), shares);
  EXPECT_EQ(lengths.quantile(1), 1000);
  EXPECT_EQ(lengths.up_to(64).quantile(1), 64);
  EXPECT_DOUBLE_EQ(lengths.up_to(64).mean(), 64);
}

TEST(LengthDistributionTest, KeepsItsSharesInOtherBuckets) {
  std::array<double, kLengthBuckets> shares{};
  shares[0] = 0.4;
  shares[3] = 0.6;
  const LengthDistribution wide(LengthBuckets::linear(1000), shares);
  const LengthDistribution narrow = wide.in(LengthBuckets::linear(500));
  EXPECT_NEAR(narrow.share(0), 0.2, 1e-9);
  EXPECT_NEAR(narrow.share(1), 0.2, 1e-9);
  EXPECT_NEAR(narrow.share(6), 0.3, 1e-9);
  EXPECT_NEAR(narrow.share(7), 0.3, 1e-9);
  // Lengths beyond the last edge count in the last bucket.
  EXPECT_NEAR(wide.in(LengthBuckets::linear(100)).share(9), 0.64, 1e-9);
}

TEST(LengthBucketsTest, GeometricOnesGrowByAFactor) {
  const LengthBuckets buckets = LengthBuckets::geometric(16, 16 * 512);
  EXPECT_DOUBLE_EQ(buckets.end_of(0), 16);
  EXPECT_DOUBLE_EQ(buckets.end_of(kLengthBuckets - 1), 16 * 512);
  for (size_t i = 1; i < kLengthBuckets; ++i)
    EXPECT_NEAR(buckets.end_of(i) / buckets.end_of(i - 1), 2, 1e-9);
}

}  // namespace
}  // namespace spillway
