// SPDX-License-Identifier: Apache-2.0
#include "plan/chrome_trace.h"

#include <nlohmann/json.hpp>

namespace spillway {

std::string ChromeTrace::text() const {
  using nlohmann::json;
  constexpr double kMicroseconds = 1e6;
  json events = json::array();
  for (const auto& [lane, name] : lanes_) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 1},
                      {"tid", lane},
                      {"args", {{"name", name}}}});
  }
  for (const Span& span : spans_) {
    json arguments = json::object();
    for (const auto& [name, value] : span.arguments) {
      if (value >= 0) arguments[name] = value;
    }
    events.push_back({{"name", span.name},
                      {"ph", "X"},
                      {"pid", 1},
                      {"tid", span.lane},
                      {"ts", span.begin_s * kMicroseconds},
                      {"dur", span.seconds * kMicroseconds},
                      {"args", std::move(arguments)}});
  }
  return json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump();
}

}  // namespace spillway
