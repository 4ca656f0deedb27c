// SPDX-License-Identifier: Apache-2.0
// Formats numbers for people: without exponents, and with the right plural.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

// Returns text such as "1 request" or "2 requests".
std::string format_count(int64_t count, std::string_view noun);

// Returns `value` with at least `digits` significant digits, never with an exponent: "0.525",
// "14100".
std::string format_number(double value, int digits);

// Returns text such as "0.25 ms", "0.525 s", "14.1 s", "23 min 30 s" or "3 h 55 min", with about
// three significant digits.
std::string format_seconds(double seconds);

}  // namespace spillway
