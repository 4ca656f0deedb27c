// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/number_text.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja/characters.h"

namespace spillway::jinja {
namespace {

std::string lower_ascii(std::string_view text) {
  std::string lower;
  for (const char c : text)
    lower.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  return lower;
}

// Removes underscores, which may stand only between digits; returns nullopt if one does not.
std::optional<std::string> without_underscores(std::string_view text, bool after_prefix) {
  std::string plain;
  const auto alphanumeric = [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      plain.push_back(text[i]);
      continue;
    }
    const bool before = i == 0 ? after_prefix : alphanumeric(text[i - 1]);
    if (!before || i + 1 == text.size() || !alphanumeric(text[i + 1])) return std::nullopt;
  }
  return plain;
}

int base_of_prefix(char letter) {
  return letter == 'x' || letter == 'X'   ? 16
         : letter == 'o' || letter == 'O' ? 8
         : letter == 'b' || letter == 'B' ? 2
                                          : 0;
}

}  // namespace

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto written =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(written.ptr - buffer));
  const bool negative = text.front() == '-';
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string digits;
  for (const char c : text.substr(0, e))
    if (is_digit(c)) digits.push_back(c);

  const std::string_view sign = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}{}{}{}e{}{:02}", sign, digits[0], digits.size() > 1 ? "." : "",
                       digits.substr(1), exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return fmt::format("{}0.{}{}", sign, std::string(static_cast<size_t>(-exponent - 1), '0'),
                       digits);
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) digits.append(whole + 1 - digits.size(), '0');
  return fmt::format("{}{}.{}", sign, digits.substr(0, whole), digits.substr(whole));
}

std::optional<int64_t> try_parse_int(std::string_view text, int64_t base) {
  text = strip_spaces(text);
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  const bool negative = text.starts_with("-");
  if (negative || text.starts_with("+")) text.remove_prefix(1);
  bool has_prefix = false;
  if (text.size() > 1 && text[0] == '0') {
    const int prefix = base_of_prefix(text[1]);
    if (prefix != 0 && (base == 0 || base == prefix)) {
      base = prefix;
      has_prefix = true;
      text.remove_prefix(2);
    }
  }
  const auto digits = without_underscores(text, has_prefix);
  if (!digits || digits->empty()) return std::nullopt;
  if (base == 0) {
    // Python has no decimal numbers with leading zeros.
    if ((*digits)[0] == '0' && digits->find_first_not_of('0') != std::string::npos)
      return std::nullopt;
    base = 10;
  }
  uint64_t number = 0;
  const char* end = digits->data() + digits->size();
  const auto read = std::from_chars(digits->data(), end, number, static_cast<int>(base));
  if (read.ec != std::errc{} || read.ptr != end) return std::nullopt;
  const uint64_t most = uint64_t{1} << 63;
  if (number > most || (number == most && !negative)) return std::nullopt;
  return static_cast<int64_t>(negative ? uint64_t{0} - number : number);
}

std::optional<double> try_parse_float(std::string_view text) {
  text = strip_spaces(text);
  const bool negative = text.starts_with("-");
  if (negative || text.starts_with("+")) text.remove_prefix(1);
  const std::string lower = lower_ascii(text);
  const double sign = negative ? -1 : 1;
  if (lower == "inf" || lower == "infinity") return sign * HUGE_VAL;
  if (lower == "nan") return std::nan("");
  const auto plain = without_underscores(lower, false);
  if (!plain || plain->empty() || !(is_digit((*plain)[0]) || (*plain)[0] == '.'))
    return std::nullopt;
  double number = 0;
  const char* end = plain->data() + plain->size();
  const auto read = std::from_chars(plain->data(), end, number);
  if (read.ptr != end) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) {
    // The number is too large or too small for a double; only strtod tells which.
    number = std::strtod(plain->c_str(), nullptr);
  } else if (read.ec != std::errc{}) {
    return std::nullopt;
  }
  return sign * number;
}

}  // namespace spillway::jinja
