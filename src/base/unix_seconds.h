// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace spillway {

// Returns seconds since 1970, the unit of creation times in API answers and in files.
inline int64_t unix_seconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(since).count();
}

}  // namespace spillway
