// SPDX-License-Identifier: Apache-2.0
#include "plan/linear_program.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <thread>
#include <vector>

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

// Programs with few distinct factors have many optima. A new thread has a new solver.
TEST(LinearProgramTest, FindsTheSameOptimumWhateverWasSolvedBefore) {
  std::mt19937 random(1);
  const auto draw = [&](int most) {
    return static_cast<double>(random() % static_cast<unsigned>(most));
  };
  for (int i = 0; i < 300; ++i) {
    LinearProgram program;
    const int variables = 2 + static_cast<int>(draw(8)), rows = 1 + static_cast<int>(draw(10));
    for (int v = 0; v < variables; ++v) program.variable(draw(3), 0, 1 + draw(2));
    for (int row = 0; row < rows; ++row) {
      std::vector<std::pair<int, double>> terms;
      for (int v = 0; v < variables; ++v)
        if (draw(2) > 0) terms.emplace_back(v, 1 + draw(2) * 1e9);
      program.constrain(terms, draw(2), LinearProgram::kAny);
    }
    const auto here = program.try_solve();
    std::optional<std::vector<double>> there;
    std::thread([&] { there = program.try_solve(); }).join();
    EXPECT_EQ(here, there) << "program " << i;
  }
}

}  // namespace
}  // namespace spillway
