// SPDX-License-Identifier: Apache-2.0
// Parses untrusted JSON within bounds.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace spillway {

// Parses one JSON value of at most 64 levels and 1,024 members in an object (JsonLimits). Throws
// ApiError(400), which names the place of a syntax error.
nlohmann::ordered_json parse_json_text(std::string_view text);
// Does the same for text that has passed check_json_bounds().
nlohmann::ordered_json parse_bounded_json(std::string_view text);

}  // namespace spillway
