// SPDX-License-Identifier: Apache-2.0
// JSON on standard output, valid whatever bytes file names and texts contain.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/terminal.h"

namespace spillway {

// One line, or indented by `indent`.
inline void print_json(const nlohmann::json& value, int indent = -1) {
  print_now(value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace spillway
