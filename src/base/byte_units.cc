// SPDX-License-Identifier: Apache-2.0
#include "base/byte_units.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

namespace spillway {

std::optional<int64_t> try_parse_bytes(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value) || value < 0) return std::nullopt;
  std::string suffix;
  for (const char* p = end; p != text.data() + text.size(); ++p) {
    if (*p != ' ') suffix += static_cast<char>(std::tolower(static_cast<unsigned char>(*p)));
  }
  static constexpr std::array<std::pair<std::string_view, double>, 14> kUnits{{
      {"", 1.0},
      {"b", 1.0},
      {"k", 1024.0},
      {"kib", 1024.0},
      {"kb", 1e3},
      {"m", 1048576.0},
      {"mib", 1048576.0},
      {"mb", 1e6},
      {"g", 1073741824.0},
      {"gib", 1073741824.0},
      {"gb", 1e9},
      {"t", 1099511627776.0},
      {"tib", 1099511627776.0},
      {"tb", 1e12},
  }};
  const auto unit =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& u) { return u.first == suffix; });
  if (unit == kUnits.end()) return std::nullopt;
  const double bytes = value * unit->second;
  if (bytes >= 9.2e18) return std::nullopt;
  return static_cast<int64_t>(bytes);
}

std::string format_bytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, kNames[unit]);
}

}  // namespace spillway
