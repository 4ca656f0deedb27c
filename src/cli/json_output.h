// SPDX-License-Identifier: Apache-2.0
// Prints JSON that is valid whatever bytes file names and texts contain.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace spillway {

// Prints one line, or several indented by `indent`, to standard output.
void print_json(const nlohmann::json& value, int indent = -1);

}  // namespace spillway
