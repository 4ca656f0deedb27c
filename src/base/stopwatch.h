// SPDX-License-Identifier: Apache-2.0
// Measures how long something takes.
#pragma once

#include <chrono>

namespace spillway {

// Returns seconds since this object was made.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace spillway
