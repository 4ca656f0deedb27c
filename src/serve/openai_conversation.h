// SPDX-License-Identifier: Apache-2.0
// Parses the messages and tools of a chat request into the form that chat templates take.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "serve/request_fields.h"

namespace spillway {

// Returns at least one message; contents are strings. Throws ApiError(400) naming the field.
nlohmann::ordered_json read_messages(const nlohmann::ordered_json& messages,
                                     IgnoredFields& ignored);

// Returns the tools unchanged, since templates show them to the model; null if there are none.
// Throws ApiError(400) naming the field.
nlohmann::ordered_json read_tools(const nlohmann::ordered_json& tools);

}  // namespace spillway
