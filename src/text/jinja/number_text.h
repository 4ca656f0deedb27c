// SPDX-License-Identifier: Apache-2.0
// Numbers as Python writes and reads them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spillway::jinja {

// repr(): the shortest digits that give the number back, 1.0, 1e+16, nan, inf.
std::string float_text(double number);

// int(text, base) and float(text): white space around and underscores between digits are fine. A
// base of 0 goes by the prefix. Nothing for what Python refuses, and for integers of more than 64
// bits.
[[nodiscard]] std::optional<int64_t> try_parse_int(std::string_view text, int64_t base = 10);
[[nodiscard]] std::optional<double> try_parse_float(std::string_view text);

}  // namespace spillway::jinja
