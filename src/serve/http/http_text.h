// SPDX-License-Identifier: Apache-2.0
// Syntax of HTTP: tokens, lists, percent-encoding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace spillway {

// Returns whether `text` is a method or a header's name (RFC 9110, section 5.6.2); "" is neither.
bool is_http_token(std::string_view text);
// Returns whether `text` can be a header's value: it has nothing that could end the line.
bool is_header_value(std::string_view text);
std::string lower_ascii(std::string_view text);
bool equal_ignoring_case(std::string_view a, std::string_view b);
// Removes spaces and tabs at both ends.
std::string_view trim_blanks(std::string_view text);
// Returns whether the comma-separated `list` contains `word`, in any case.
bool list_has(std::string_view list, std::string_view word);

// Returns nullopt if a % is not followed by two digits, or encodes a control character. %2F stays
// encoded: a client that encodes a slash does not mean a separator.
[[nodiscard]] std::optional<std::string> try_percent_decode(std::string_view text);

}  // namespace spillway
