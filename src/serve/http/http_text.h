// SPDX-License-Identifier: Apache-2.0
// The small words of HTTP: tokens, lists, percent-encoding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace spillway {

// A method or a header's name (RFC 9110, section 5.6.2); "" is none.
bool is_http_token(std::string_view text);
// Fit to be a header's value: nothing that could end the line.
bool is_header_value(std::string_view text);
std::string lower_ascii(std::string_view text);
bool equal_ignoring_case(std::string_view a, std::string_view b);
// Without spaces and tabs at both ends.
std::string_view trim_blanks(std::string_view text);
// Whether the comma-separated `list` has `word`, in any case.
bool list_has(std::string_view list, std::string_view word);

// None where a % has no two digits behind it, or a control character would come out. %2F stays as
// it is: who encodes a slash does not mean a separator.
[[nodiscard]] std::optional<std::string> try_percent_decode(std::string_view text);

}  // namespace spillway
