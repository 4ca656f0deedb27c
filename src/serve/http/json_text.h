// SPDX-License-Identifier: Apache-2.0
// JSON as answers have it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "serve/api_error.h"

namespace spillway {

// {"error": {"message", "type", "param", "code"}}
nlohmann::ordered_json error_body(const ApiError& error);

// On one line, in UTF-8; bytes that are none become U+FFFD.
std::string json_line(const nlohmann::ordered_json& value);

}  // namespace spillway
