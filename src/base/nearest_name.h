// SPDX-License-Identifier: Apache-2.0
// The name that was probably meant by a misspelled one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace spillway {

// The name with the fewest edits (a letter more, less or another, two swapped; case is ignored) to
// `word`, at most one for every three letters; or the only one that `word` begins. nullopt where
// none is so near. Of equally near names the first.
[[nodiscard]] std::optional<std::string> try_nearest_name(std::string_view word,
                                                          std::span<const std::string> names);

// "; did you mean NAME?", or "" where no name is near.
std::string did_you_mean(std::string_view word, std::span<const std::string> names);

}  // namespace spillway
