// SPDX-License-Identifier: Apache-2.0
// Solves small linear programs with COIN-OR's CLP.
#pragma once

#include <optional>
#include <utility>
#include <vector>

namespace spillway {

// Minimizes the sum of cost x variable under constraints.
class LinearProgram {
 public:
  static constexpr double kAny = 1e300;

  // Returns the variable's number.
  int variable(double cost, double low = 0, double high = kAny);
  // low <= sum of factor x variable <= high
  void constrain(std::vector<std::pair<int, double>> terms, double low, double high);
  // Returns the variables' values, or nullopt if the constraints contradict each other.
  std::optional<std::vector<double>> try_solve() const;

 private:
  struct Variable {
    double cost, low, high;
  };
  struct Row {
    std::vector<std::pair<int, double>> terms;
    double low, high;
  };
  std::vector<Variable> variables_;
  std::vector<Row> rows_;
};

}  // namespace spillway
