// SPDX-License-Identifier: Apache-2.0
// Text from a file inside an error message: one line, short.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

// Control characters are escaped, the end is cut off after 80 bytes.
inline std::string printable(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  std::string result;
  for (char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == 0x7F)
      result += fmt::format("\\x{:02x}", byte);
    else
      result.push_back(c);
  }
  if (text.size() > kMaxBytes) result += "...";
  return result;
}

}  // namespace spillway
