// SPDX-License-Identifier: Apache-2.0
#include "plan/linear_program.h"

#include <ClpSimplex.hpp>
#include <CoinPackedMatrix.hpp>

namespace spillway {
namespace {

constexpr int kSeed = 1234567;

}  // namespace

int LinearProgram::variable(double cost, double low, double high) {
  variables_.push_back({cost, low, high});
  return static_cast<int>(variables_.size()) - 1;
}

void LinearProgram::constrain(std::vector<std::pair<int, double>> terms, double low, double high) {
  rows_.push_back({std::move(terms), low, high});
}

std::optional<std::vector<double>> LinearProgram::try_solve() const {
  const auto bound = [](double value) {
    return value >= kAny ? COIN_DBL_MAX : value <= -kAny ? -COIN_DBL_MAX : value;
  };
  std::vector<int> row_of, column_of;
  std::vector<double> factors, row_low, row_high, low, high, cost;
  for (size_t i = 0; i < rows_.size(); ++i) {
    for (const auto& [column, factor] : rows_[i].terms) {
      row_of.push_back(static_cast<int>(i));
      column_of.push_back(column);
      factors.push_back(factor);
    }
    row_low.push_back(bound(rows_[i].low));
    row_high.push_back(bound(rows_[i].high));
  }
  for (const Variable& variable : variables_) {
    low.push_back(bound(variable.low));
    high.push_back(bound(variable.high));
    cost.push_back(variable.cost);
  }
  CoinPackedMatrix matrix(/*colordered=*/true, row_of.data(), column_of.data(), factors.data(),
                          static_cast<CoinBigIndex>(factors.size()));
  matrix.setDimensions(static_cast<int>(rows_.size()), static_cast<int>(variables_.size()));
  const auto load = [&](ClpSimplex& solver) {
    solver.setLogLevel(0);
    solver.loadProblem(matrix, low.data(), high.data(), cost.data(), row_low.data(),
                       row_high.data());
  };
  const auto solution_of = [&](const ClpSimplex& solver) {
    const double* solution = solver.primalColumnSolution();
    return std::vector<double>(solution, solution + variables_.size());
  };
  // Making a solver takes longer than solving a program of this size, and so does presolve, so one
  // solver is used again without it. Only if it finds no optimum does a new solver decide whether
  // there is one. What the solver learned from the last program is reset: of several optima it must
  // find the same one, whatever it has solved before.
  thread_local ClpSimplex quick;
  thread_local const ClpSimplex untouched;
  quick.randomNumberGenerator()->setSeed(kSeed);
  quick.setInfeasibilityCost(untouched.infeasibilityCost());
  quick.setDualBound(untouched.dualBound());
  quick.setPerturbation(untouched.perturbation());
  load(quick);
  quick.allSlackBasis(/*resetSolution=*/true);
  quick.primal();
  if (quick.isProvenOptimal()) return solution_of(quick);
  ClpSimplex thorough;
  load(thorough);
  thorough.initialSolve();
  if (!thorough.isProvenOptimal()) return std::nullopt;
  return solution_of(thorough);
}

}  // namespace spillway
