// SPDX-License-Identifier: Apache-2.0
// Parses a request's head strictly: whatever two programs could understand differently is refused,
// so that no second request can be smuggled inside a first one.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "serve/http/http_options.h"
#include "serve/http/http_request.h"

namespace spillway {

struct RequestHead {
  std::shared_ptr<HttpRequest> request;  // has no body and peer yet
  bool is_http_10 = false;
  bool keep_alive = true;
  bool expects_continue = false;
  bool is_chunked = false;
  uint64_t content_length = 0;

  bool has_body() const { return is_chunked || content_length > 0; }
};

// `text` is the request line and the headers, each line with its CR LF, without the blank line; it
// has no other control characters than tabs. Throws ApiError: 400, 414, 417, 501, 505.
RequestHead parse_request_head(std::string_view text, const HttpOptions& options);

// Parses "Name: value", without its line end. Throws ApiError(400).
HttpHeader parse_header_line(std::string_view line);

}  // namespace spillway
