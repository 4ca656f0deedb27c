// SPDX-License-Identifier: Apache-2.0
// Writes and reads numbers as Python does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spillway::jinja {

// Returns Python's repr(): the shortest digits that read back as the same number, such as 1.0,
// 1e+16, nan, inf.
std::string float_text(double number);

// Parse like int(text, base) and float(text): white space around and underscores between digits are
// allowed, and base 0 takes the base from the prefix. They return nullopt for texts that Python
// refuses and for integers of more than 64 bits.
[[nodiscard]] std::optional<int64_t> try_parse_int(std::string_view text, int64_t base = 10);
[[nodiscard]] std::optional<double> try_parse_float(std::string_view text);

}  // namespace spillway::jinja
