// SPDX-License-Identifier: Apache-2.0
// A request as handlers see it, and a complete answer.
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
// Finds a method by its exact spelling.
[[nodiscard]] std::optional<HttpMethod> try_http_method(std::string_view name);

struct HttpHeader {
  std::string name;
  std::string value;
};

// Immutable once a handler has it, so threads may share it.
struct HttpRequest {
  HttpMethod method = HttpMethod::kGet;
  std::string target;               // as sent
  std::string path;                 // decoded, without the query; "*" for OPTIONS *
  std::string query;                // as sent, without the '?'
  std::vector<HttpHeader> headers;  // names in lower case, values without spaces around them
  std::string body;
  std::string id;         // the server's id of it: 24 hexadecimal digits, unique
  std::string peer;       // "127.0.0.1:49152"
  bool draining = false;  // the server shuts down: do not begin anything that takes long
  // While the request is alive, its body counts towards the memory for bodies.
  std::shared_ptr<const void> counted = {};

  // Returns the first header of this name, which is in lower case; "" if there is none.
  std::string_view header(std::string_view name) const;
  // Returns the peer's address without its port: "127.0.0.1", "::1".
  std::string_view address() const;
};

// Every answer has this header, so that client and log refer to the same request. It has the
// request's id unless the handler sets it.
inline constexpr std::string_view kRequestIdHeader = "X-Request-Id";

struct HttpAnswer {
  int status = 200;
  std::string content_type;  // "": no such header
  std::string body;
  std::vector<HttpHeader> headers = {};
};

}  // namespace spillway
