// SPDX-License-Identifier: Apache-2.0
// What the tests of templates render with.
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

// The message of the error; empty when there is none.
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

// Markers in brackets, the rest as it is.
inline std::string origins(std::string_view source, const nlohmann::ordered_json& variables,
                           const JinjaOptions& options = {}) {
  std::string text;
  for (const TextSegment& segment : JinjaTemplate(source).render(variables, options))
    text += segment.is_marker ? "[" + segment.text + "]" : segment.text;
  return text;
}

}  // namespace spillway
