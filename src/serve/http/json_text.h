// SPDX-License-Identifier: Apache-2.0
// Writes JSON for answers.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "serve/api_error.h"

namespace spillway {

// Returns {"error": {"message", "type", "param", "code"}}.
nlohmann::ordered_json error_body(const ApiError& error);

// Returns one line of UTF-8; invalid bytes become U+FFFD.
std::string json_line(const nlohmann::ordered_json& value);

}  // namespace spillway
