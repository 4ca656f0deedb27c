// SPDX-License-Identifier: Apache-2.0
// The value in the middle; of an even number the larger of the two.
#pragma once

#include <algorithm>
#include <vector>

namespace spillway {

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace spillway
