// SPDX-License-Identifier: Apache-2.0
// JSON of strangers, parsed within bounds.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace spillway {

// One JSON value of at most 64 levels, with at most 1,024 members in an object (JsonLimits). Throws
// ApiError(400) saying where it is not JSON.
nlohmann::ordered_json parse_json_text(std::string_view text);
// The same of text that check_json_bounds() has let pass.
nlohmann::ordered_json parse_bounded_json(std::string_view text);

}  // namespace spillway
