// SPDX-License-Identifier: Apache-2.0
#include "serve/http/http_request.h"

#include <array>
#include <utility>

namespace spillway {
namespace {

constexpr std::array<std::pair<HttpMethod, std::string_view>, 7> kMethods = {{
    {HttpMethod::kGet, "GET"},
    {HttpMethod::kHead, "HEAD"},
    {HttpMethod::kPost, "POST"},
    {HttpMethod::kPut, "PUT"},
    {HttpMethod::kPatch, "PATCH"},
    {HttpMethod::kDelete, "DELETE"},
    {HttpMethod::kOptions, "OPTIONS"},
}};

}  // namespace

std::string_view http_method_name(HttpMethod method) {
  for (const auto& [known, name] : kMethods) {
    if (known == method) return name;
  }
  return "?";
}

std::optional<HttpMethod> try_http_method(std::string_view name) {
  for (const auto& [method, known] : kMethods) {
    if (known == name) return method;
  }
  return std::nullopt;
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (header.name == name) return header.value;
  }
  return {};
}

std::string_view HttpRequest::address() const {
  std::string_view text = peer;
  text = text.substr(0, text.rfind(':'));
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  return text;
}

}  // namespace spillway
