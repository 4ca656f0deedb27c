// SPDX-License-Identifier: Apache-2.0
#include "bench/s3_policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

namespace spillway {
namespace {

SequenceView waiting(int64_t reserved) { return {.prompt = 10, .known = 10, .reserved = reserved}; }

TEST(LongestPredictedFirstTest, LongOnesGoFirstButNotBeforeThoseThatCameLongAgo) {
  LongestPredictedFirst order(/*window=*/2);
  const double brief = order.rank(waiting(20)).value, lengthy = order.rank(waiting(900)).value;
  const double late = order.rank(waiting(5000)).value;
  EXPECT_LT(lengthy, brief);
  EXPECT_GT(late, brief);
}

TEST(PacedAdmissionTest, HasAsManySequencesAsKeepTheReadersPace) {
  PacedAdmission admission(
      std::make_unique<PlannedAdmission>(AdmissionPolicy{.max_sequences = 1000}), 0.1);
  // A step takes a millisecond for each sequence.
  int running = 1000;
  for (int i = 0; i < 200; ++i) {
    running = std::min(admission.max_sequences(), 1000);
    admission.stepped(running, 1e-3 * running);
  }
  EXPECT_GE(running, 85);
  EXPECT_LE(running, 107);
  // One sequence may always run, however slow it is.
  for (int i = 0; i < 100; ++i) admission.stepped(1, 5);
  EXPECT_EQ(admission.max_sequences(), 1);
}

TEST(PacedAdmissionTest, AHalfEmptyStepSaysNothingOfALargerOne) {
  PacedAdmission admission(
      std::make_unique<PlannedAdmission>(AdmissionPolicy{.max_sequences = 1000}), 0.1);
  admission.stepped(1000, 1);
  const int limit = admission.max_sequences();
  EXPECT_LE(limit, 500);
  for (int i = 0; i < 50; ++i) admission.stepped(3, 0.01);
  EXPECT_EQ(admission.max_sequences(), limit);
}

}  // namespace
}  // namespace spillway
