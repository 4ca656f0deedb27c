// SPDX-License-Identifier: Apache-2.0
// Searches in bytes whose time is linear whatever is searched for.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace spillway::jinja {

// The first place at `from` or later; `from` may be anything. An empty `what` is found at `from`.
[[nodiscard]] std::optional<size_t> find_bytes(std::string_view text, std::string_view what,
                                               size_t from = 0);
// The last place. An empty `what` is found at the end.
[[nodiscard]] std::optional<size_t> find_last_bytes(std::string_view text, std::string_view what);

}  // namespace spillway::jinja
