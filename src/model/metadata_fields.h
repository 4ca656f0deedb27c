// SPDX-License-Identifier: Apache-2.0
// Common ways in which families read sizes and names from metadata.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "storage/metadata.h"

namespace spillway {

// Reads a size: not negative, and small enough that validate() can check it without overflow.
inline int read_size(const Metadata& metadata, std::string_view key) {
  return static_cast<int>(metadata.get_int(key, 0, int64_t{1} << 30));
}
inline int read_size_or(const Metadata& metadata, std::string_view key, int64_t fallback) {
  return static_cast<int>(metadata.try_int(key, 0, int64_t{1} << 30).value_or(fallback));
}
inline std::string read_string_or(const Metadata& metadata, std::string_view key,
                                  std::string_view fallback) {
  const std::string* value = metadata.try_string(key);
  return value != nullptr ? *value : std::string(fallback);
}

}  // namespace spillway
