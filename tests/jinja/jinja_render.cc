// SPDX-License-Identifier: Apache-2.0
// Renders templates, for tests/python: one JSON object a line on stdin, {"template": ...,
// "variables": {...}, "now": "2026-01-31T12:00:00", "trusted": ["bos_token"]}, the last two
// optional; one a line on stdout, {"text": ..., "segments": [[text, is_marker], ...]} or
// {"error": ...}.
#include <time.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/jinja/jinja_template.h"

namespace {

using Json = nlohmann::ordered_json;

Json render(const Json& request) {
  spillway::JinjaOptions options;
  if (request.contains("now")) {
    std::tm now{};
    strptime(request["now"].get<std::string>().c_str(), "%Y-%m-%dT%H:%M:%S", &now);
    options.now = now;
  }
  std::vector<std::string> names;
  if (request.contains("trusted")) names = request["trusted"].get<std::vector<std::string>>();
  const std::vector<std::string_view> trusted(names.begin(), names.end());
  options.trusted = trusted;
  try {
    const spillway::JinjaTemplate parsed(request.at("template").get<std::string>());
    Json answer{{"text", ""}, {"segments", Json::array()}};
    std::string text;
    for (const spillway::TextSegment& segment : parsed.render(request.at("variables"), options)) {
      text += segment.text;
      answer["segments"].push_back(Json::array({segment.text, segment.is_marker}));
    }
    answer["text"] = text;
    return answer;
  } catch (const spillway::Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const Json answer = render(Json::parse(line));
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}
