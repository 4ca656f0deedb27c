// SPDX-License-Identifier: Apache-2.0
// Resolves escapes in the string literals of templates.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace spillway::jinja {

// Resolves \n, \x41, \u00e9 and so on as Python does. Unknown escapes are left unchanged, and
// surrogates become U+FFFD. Returns nullopt for an incomplete escape.
[[nodiscard]] std::optional<std::string> try_unescape(std::string_view literal);

}  // namespace spillway::jinja
