// SPDX-License-Identifier: Apache-2.0
// A request's head, read strictly: what two programs could understand differently is refused, so
// that nobody can hide a second request in a first one.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "serve/http/http_options.h"
#include "serve/http/http_request.h"

namespace spillway {

struct RequestHead {
  std::shared_ptr<HttpRequest> request;  // without body and peer
  bool is_http_10 = false;
  bool keep_alive = true;
  bool expects_continue = false;
  bool is_chunked = false;
  uint64_t content_length = 0;

  bool has_body() const { return is_chunked || content_length > 0; }
};

// `text` is the request line and the headers, each line with its CR LF, without the blank line;
// no other control characters than tabs are in it. Throws ApiError: 400, 414, 417, 501, 505.
RequestHead parse_request_head(std::string_view text, const HttpOptions& options);

// "Name: value", without its line end. Throws ApiError(400).
HttpHeader parse_header_line(std::string_view line);

}  // namespace spillway
