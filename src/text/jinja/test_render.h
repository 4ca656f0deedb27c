// SPDX-License-Identifier: Apache-2.0
// Helpers with which the tests render templates.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/jinja/jinja_template.h"

namespace spillway {

inline std::string rendered(
    std::string_view source,
    const nlohmann::ordered_json& variables = nlohmann::ordered_json::object(),
    const JinjaOptions& options = {}) {
  std::string text;
  for (const TextSegment& segment : JinjaTemplate(source).render(variables, options))
    text += segment.text;
  return text;
}

// Returns the message of the error; empty if there is none.
inline std::string error_of(
    std::string_view source,
    const nlohmann::ordered_json& variables = nlohmann::ordered_json::object(),
    const JinjaOptions& options = {}) {
  try {
    static_cast<void>(JinjaTemplate(source).render(variables, options));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

// Renders with markers in brackets and the rest unchanged.
inline std::string origins(std::string_view source, const nlohmann::ordered_json& variables,
                           const JinjaOptions& options = {}) {
  std::string text;
  for (const TextSegment& segment : JinjaTemplate(source).render(variables, options))
    text += segment.is_marker ? "[" + segment.text + "]" : segment.text;
  return text;
}

}  // namespace spillway
