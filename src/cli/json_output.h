// SPDX-License-Identifier: Apache-2.0
// JSON on standard output, valid whatever bytes file names and texts contain.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace spillway {

// One line, or indented by `indent`.
void print_json(const nlohmann::json& value, int indent = -1);

}  // namespace spillway
