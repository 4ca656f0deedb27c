// SPDX-License-Identifier: Apache-2.0
#include "serve/bounded_json.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "serve/api_error.h"
#include "serve/json_bounds.h"

namespace spillway {

nlohmann::ordered_json parse_json_text(std::string_view text) {
  check_json_bounds(text, {});
  return parse_bounded_json(text);
}

nlohmann::ordered_json parse_bounded_json(std::string_view text) {
  // The parser takes a zero byte for the end of the text, and would ignore what follows.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    throw ApiError(400, "invalid_json", "",
                   fmt::format("not valid JSON: column {}: a zero byte", zero + 1));
  try {
    return nlohmann::ordered_json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& error) {
    // The message is "[json.exception.parse_error.101] parse error at line 1, column 5: ...".
    std::string_view what = error.what();
    if (const auto bracket = what.find("] "); bracket != std::string_view::npos)
      what.remove_prefix(bracket + 2);
    if (const auto column = what.find("column "); column != std::string_view::npos)
      what.remove_prefix(column);
    throw ApiError(400, "invalid_json", "", "not valid JSON: " + printable(what, 160));
  }
}

}  // namespace spillway
