// SPDX-License-Identifier: Apache-2.0
#include "serve/http/cors.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"
#include "serve/http/http_text.h"

namespace spillway {
namespace {

constexpr size_t kMostAskedBytes = 1024;

// Checks the header names that a browser wants to send. They are sent back as they came, so only
// valid names may pass.
bool is_list_of_names(std::string_view text) {
  if (text.size() > kMostAskedBytes) return false;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (!is_http_token(trim_blanks(text.substr(0, comma)))) return false;
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return true;
}

}  // namespace

Cors::Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {
  for (const std::string& origin : origins_) {
    any_ = any_ || origin == "*";
    const bool is_origin = origin.find("://") != std::string::npos && !origin.ends_with('/') &&
                           is_header_value(origin) && origin.find(' ') == std::string::npos;
    SPW_CHECK(origin == "*" || is_origin, kInvalidArgument,
              "'{}' is no origin; write '*' or e.g. 'https://chat.example', without a path",
              printable(origin));
  }
}

bool Cors::allows(std::string_view origin) const {
  return any_ || std::find(origins_.begin(), origins_.end(), origin) != origins_.end();
}

std::string Cors::lines(const HttpRequest& request) const {
  if (origins_.empty()) return {};
  constexpr std::string_view kExposed =
      "Access-Control-Expose-Headers: Retry-After, X-Request-Id, X-Spillway-Ignored\r\n";
  if (any_) return fmt::format("Access-Control-Allow-Origin: *\r\n{}", kExposed);
  const std::string_view origin = request.header("origin");
  // Caches must not give one origin's answer to another.
  if (origin.empty() || !allows(origin)) return "Vary: Origin\r\n";
  return fmt::format("Access-Control-Allow-Origin: {}\r\nVary: Origin\r\n{}", origin, kExposed);
}

std::optional<HttpAnswer> Cors::try_preflight(const HttpRequest& request) const {
  if (request.method != HttpMethod::kOptions) return std::nullopt;
  const std::string_view origin = request.header("origin");
  if (origin.empty() || request.header("access-control-request-method").empty() || !allows(origin))
    return std::nullopt;
  HttpAnswer answer = {204, {}, {}, {}};
  answer.headers.push_back(
      {"Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"});
  const std::string_view asked = request.header("access-control-request-headers");
  // "*" would not include Authorization.
  if (!asked.empty() && is_list_of_names(asked))
    answer.headers.push_back({"Access-Control-Allow-Headers", std::string(asked)});
  answer.headers.push_back({"Access-Control-Max-Age", "600"});
  return answer;
}

}  // namespace spillway
