// SPDX-License-Identifier: Apache-2.0
#include "predict/shift_watch.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

namespace spillway {
namespace {

// Draws an answer from three buckets at random. std::discrete_distribution differs between standard
// libraries.
size_t bucket_near(size_t first, std::mt19937& random) {
  const auto of_ten = random() % 10;
  return first + (of_ten < 6 ? 0 : of_ten < 9 ? 1 : 2);
}

constexpr std::array<double, 3> kShares = {0.6, 0.3, 0.1};

// Returns the share given by a predictor that knows these answers and thinks others nearly
// impossible.
double share_by_who_knows(size_t first, size_t bucket) {
  return bucket >= first && bucket < first + kShares.size() ? kShares[bucket - first] : 1e-3;
}

TEST(ShiftWatchTest, NeverNoticesAnythingWhereThePredictorIsRight) {
  std::mt19937 random(1);
  ShiftWatch watch;
  for (int i = 0; i < 20'000; ++i) {
    const size_t bucket = bucket_near(2, random);
    EXPECT_FALSE(watch.try_notice(share_by_who_knows(2, bucket), bucket).has_value()) << i;
  }
}

TEST(ShiftWatchTest, NoticesAtOnceWhereAllAnswersBecomeOthersAndSaysSinceWhen) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    ShiftWatch watch;
    for (int i = 0; i < 300; ++i) {
      const size_t bucket = bucket_near(2, random);
      ASSERT_FALSE(watch.try_notice(share_by_who_knows(2, bucket), bucket).has_value());
    }
    size_t came = 0;
    std::optional<size_t> noticed;
    while (!noticed && came < 100) {
      const size_t bucket = bucket_near(6, random);
      ++came;
      noticed = watch.try_notice(share_by_who_knows(2, bucket), bucket);
    }
    ASSERT_TRUE(noticed.has_value()) << seed;
    EXPECT_LE(came, 20U);
    EXPECT_LE(*noticed, came + 3) << "few of those that came before";
    EXPECT_GE(*noticed + 3, came) << "nearly all that came since";
  }
}

TEST(ShiftWatchTest, AFewSurprisesAreNoShift) {
  std::mt19937 random(3);
  ShiftWatch watch;
  for (int i = 0; i < 5000; ++i) {
    const size_t bucket = i % 20 == 0 ? 9 : bucket_near(2, random);
    EXPECT_FALSE(watch.try_notice(share_by_who_knows(2, bucket), bucket).has_value()) << i;
  }
}

// A predictor that knows nothing and says so must not be taken for a stale one: there is nothing to
// forget.
TEST(ShiftWatchTest, APredictorThatIsUnsureOfAnswersOfAllLengthsIsNotStale) {
  std::mt19937 random(4);
  ShiftWatch watch;
  for (int i = 0; i < 5000; ++i)
    EXPECT_FALSE(watch.try_notice(0.1, random() % kLengthBuckets).has_value()) << i;
}

TEST(ShiftWatchTest, SharesOfNothingAreNoNumbersThatStay) {
  ShiftWatch watch;
  size_t noticed = 0;
  for (int i = 0; i < 100; ++i) noticed += watch.try_notice(0, 5).has_value() ? 1 : 0;
  EXPECT_GT(noticed, 1U) << "again and again, until the predictor knows";
}

// A client that alternates between two kinds of answers must not make the predictor forget each
// time.
TEST(ShiftWatchTest, ShiftsAreSomeAnswersApart) {
  ShiftWatch watch;
  constexpr size_t kAnswers = 640;
  size_t shifts = 0;
  for (size_t i = 0; i < kAnswers; ++i) shifts += watch.try_notice(1e-6, i / 8 % 2).has_value();
  EXPECT_GT(shifts, 1u);
  EXPECT_LE(shifts, kAnswers / 16);
  EXPECT_FALSE(watch.try_notice(std::nan(""), 0)) << "what is no number is no reason either";
}

}  // namespace
}  // namespace spillway
