// SPDX-License-Identifier: Apache-2.0
#include "base/plain_numbers.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace spillway {
namespace {

constexpr int kDigits = 3;
constexpr double kMinutesFrom = 600;       // seconds
constexpr double kHoursFrom = 2 * 3600.0;  // seconds

}  // namespace

std::string format_count(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string format_number(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{:g}", value);
  // Digits before the point are counted in the rounded number: 9.996 rounded to three digits is
  // 10.0, which has two.
  const double rounded = std::stod(fmt::format("{:.{}e}", value, digits - 1));
  const int before_point = static_cast<int>(std::floor(std::log10(std::fabs(rounded)))) + 1;
  std::string text = fmt::format("{:.{}f}", value, std::max(0, digits - before_point));
  if (text.find('.') != std::string::npos) {
    text.resize(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

std::string format_seconds(double seconds) {
  if (seconds > 0 && seconds < 1e-3) return format_number(seconds * 1e3, kDigits) + " ms";
  if (!(seconds >= kMinutesFrom) || !std::isfinite(seconds))
    return format_number(seconds, kDigits) + " s";
  if (seconds < kHoursFrom) {
    const auto whole = static_cast<int64_t>(std::llround(seconds));
    return fmt::format("{} min {} s", whole / 60, whole % 60);
  }
  const auto minutes = static_cast<int64_t>(std::llround(seconds / 60));
  return fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

}  // namespace spillway
