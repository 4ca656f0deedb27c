// SPDX-License-Identifier: Apache-2.0
// Measures how far computed numbers are from expected ones.
#pragma once

#include <cstddef>
#include <vector>

namespace spillway {

// Returns the sum of the squared differences over the sum of the squares of `expected`.
inline double nmse(const std::vector<float>& found, const std::vector<float>& expected) {
  double error = 0, power = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    error += (double{found[i]} - expected[i]) * (double{found[i]} - expected[i]);
    power += double{expected[i]} * expected[i];
  }
  return error / power;
}

}  // namespace spillway
