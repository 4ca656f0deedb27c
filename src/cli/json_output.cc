// SPDX-License-Identifier: Apache-2.0
#include "cli/json_output.h"

#include <nlohmann/json.hpp>

#include "cli/terminal.h"

namespace spillway {

void print_json(const nlohmann::json& value, int indent) {
  print_now(value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace spillway
