// SPDX-License-Identifier: Apache-2.0
// Escapes in the string literals of templates.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace spillway::jinja {

// \n, \x41, \u00e9 and so on as Python reads them; unknown escapes stay as they are. Nothing when
// one is not complete. Surrogates become U+FFFD.
[[nodiscard]] std::optional<std::string> try_unescape(std::string_view literal);

}  // namespace spillway::jinja
