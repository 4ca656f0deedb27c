// SPDX-License-Identifier: Apache-2.0
// The messages and tools of a chat request, as chat templates take them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "serve/request_fields.h"

namespace spillway {

// Messages whose contents are strings; not none. Throws ApiError(400) naming the field.
nlohmann::ordered_json read_messages(const nlohmann::ordered_json& messages,
                                     IgnoredFields& ignored);

// The tools as they are, for templates show them to the model; null where there are none. Throws
// ApiError(400) naming the field.
nlohmann::ordered_json read_tools(const nlohmann::ordered_json& tools);

}  // namespace spillway
