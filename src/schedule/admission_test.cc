// SPDX-License-Identifier: Apache-2.0
#include "schedule/admission.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(AdmissionTest, EverySchedulesMeaning) {
  Plan plan;
  plan.micro_batch = 4;
  plan.micro_batches = 3;
  plan.schedule = ScheduleKind::kContinuous;
  const AdmissionPolicy continuous = admission_policy(plan, 64);
  EXPECT_EQ(continuous.max_sequences, 12);
  EXPECT_FALSE(continuous.admit_in_blocks || continuous.prompts_first || continuous.stagger);
  EXPECT_EQ(continuous.max_admissions, 0);

  plan.schedule = ScheduleKind::kZigzag;
  const AdmissionPolicy zigzag = admission_policy(plan, 64);
  EXPECT_EQ(zigzag.max_sequences, 12);
  EXPECT_TRUE(zigzag.admit_in_blocks && zigzag.prompts_first);

  plan.schedule = ScheduleKind::kRow;
  EXPECT_EQ(admission_policy(plan, 64).max_sequences, 4);
  EXPECT_TRUE(admission_policy(plan, 64).admit_in_blocks);

  plan.schedule = ScheduleKind::kDiagonal;
  EXPECT_TRUE(admission_policy(plan, 64).stagger);
  // With answers of 5 tokens, about 3 of 12 sequences end in a step.
  const AdmissionPolicy diagonal = admission_policy(plan, 64, 5);
  EXPECT_FALSE(diagonal.stagger);
  EXPECT_EQ(diagonal.max_admissions, 3);
}

TEST(AdmissionTest, NeverMoreThanThereIsRoomFor) {
  EXPECT_EQ(admission_policy(Plan(), 7).max_sequences, 7);
  Plan wide;
  wide.micro_batch = 8;
  EXPECT_EQ(admission_policy(wide, 3).max_sequences, 3);
}

}  // namespace
}  // namespace spillway
