// SPDX-License-Identifier: Apache-2.0
// Searches bytes in linear time, whatever is searched for.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace spillway::jinja {

// Finds the first occurrence at `from` or later. If `from` is past the end, there is none; an empty
// `what` is found at `from`.
[[nodiscard]] std::optional<size_t> find_bytes(std::string_view text, std::string_view what,
                                               size_t from = 0);
// Finds the last occurrence. An empty `what` is found at the end.
[[nodiscard]] std::optional<size_t> find_last_bytes(std::string_view text, std::string_view what);

}  // namespace spillway::jinja
