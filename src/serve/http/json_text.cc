// SPDX-License-Identifier: Apache-2.0
#include "serve/http/json_text.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace spillway {

using nlohmann::ordered_json;

ordered_json error_body(const ApiError& error) {
  ordered_json param = nullptr;
  if (!error.param().empty()) param = error.param();
  return {{"error",
           {{"message", error.what()},
            {"type", error.type()},
            {"param", std::move(param)},
            {"code", error.code_name()}}}};
}

std::string json_line(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace spillway
