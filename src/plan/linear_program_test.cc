// SPDX-License-Identifier: Apache-2.0
#include "plan/linear_program.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(LinearProgramTest, FindsTheCornerThatIsBest) {
  // Minimizes 2x + 3y with x + y >= 4 and x <= 3; the solution is x = 3, y = 1.
  LinearProgram program;
  const int x = program.variable(2, 0, 3), y = program.variable(3);
  program.constrain({{x, 1}, {y, 1}}, 4, LinearProgram::kAny);
  const auto solution = program.try_solve();
  ASSERT_TRUE(solution);
  EXPECT_NEAR((*solution)[static_cast<size_t>(x)], 3, 1e-9);
  EXPECT_NEAR((*solution)[static_cast<size_t>(y)], 1, 1e-9);
}

TEST(LinearProgramTest, SharesTwoLinksSoThatTheyEndTogether) {
  // A share is sent over a link that takes 2 and the rest over one that takes 3: t is at least both
  // times.
  LinearProgram program;
  const int share = program.variable(0, 0, 1), t = program.variable(1);
  program.constrain({{share, 1.0 / 2}, {t, -1}}, -LinearProgram::kAny, 0);
  program.constrain({{share, -1.0 / 3}, {t, -1}}, -LinearProgram::kAny, -1.0 / 3);
  const auto solution = program.try_solve();
  ASSERT_TRUE(solution);
  EXPECT_NEAR((*solution)[static_cast<size_t>(share)], 0.4, 1e-9);
  EXPECT_NEAR((*solution)[static_cast<size_t>(t)], 0.2, 1e-9);
}

TEST(LinearProgramTest, SaysWhereThereIsNoSolution) {
  LinearProgram program;
  const int x = program.variable(1, 0, 1);
  program.constrain({{x, 1}}, 2, LinearProgram::kAny);
  EXPECT_FALSE(program.try_solve());
}

}  // namespace
}  // namespace spillway
