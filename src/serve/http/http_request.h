// SPDX-License-Identifier: Apache-2.0
// A request as handlers see it, and a whole answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

enum class HttpMethod : uint8_t { kGet, kHead, kPost, kPut, kPatch, kDelete, kOptions };

std::string_view http_method_name(HttpMethod method);
// By exact spelling.
[[nodiscard]] std::optional<HttpMethod> try_http_method(std::string_view name);

struct HttpHeader {
  std::string name;
  std::string value;
};

// Never changed once a handler has it, so threads may share it.
struct HttpRequest {
  HttpMethod method = HttpMethod::kGet;
  std::string target;               // as sent
  std::string path;                 // decoded, without the query; "*" for OPTIONS *
  std::string query;                // as sent, without the '?'
  std::vector<HttpHeader> headers;  // names in lower case, values without spaces around them
  std::string body;
  std::string id;         // what the server calls it: 24 hexadecimal digits, others' are others
  std::string peer;       // "127.0.0.1:49152"
  bool draining = false;  // the server is about to end: begin nothing that takes long
  // As long as somebody has the request, its body counts against what the server holds.
  std::shared_ptr<const void> counted = {};

  // The first with this name, which is in lower case; "" where there is none.
  std::string_view header(std::string_view name) const;
  // Of the peer, without its port: "127.0.0.1", "::1".
  std::string_view address() const;
};

// Every answer has it, so that client and log speak of the same request: where a handler gives
// none, the request's id.
inline constexpr std::string_view kRequestIdHeader = "X-Request-Id";

struct HttpAnswer {
  int status = 200;
  std::string content_type;  // "": none
  std::string body;
  std::vector<HttpHeader> headers = {};
};

}  // namespace spillway
