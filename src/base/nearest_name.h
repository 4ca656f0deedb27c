// SPDX-License-Identifier: Apache-2.0
// Finds the name that was probably meant by a misspelled one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace spillway {

// Returns the name with the fewest edits to `word` (a letter inserted, deleted or replaced, or two
// swapped; case is ignored), with at most one edit for every three letters; else the only name that
// begins with `word`. Returns nullopt if no name is so close, and the first of equally close names.
[[nodiscard]] std::optional<std::string> try_nearest_name(std::string_view word,
                                                          std::span<const std::string> names);

// Returns "; did you mean NAME?", or "" if no name is close.
std::string did_you_mean(std::string_view word, std::span<const std::string> names);

}  // namespace spillway
