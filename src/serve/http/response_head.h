// SPDX-License-Identifier: Apache-2.0
// The head of an answer, as it goes over the wire.
#pragma once

#include <cstddef>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/http_request.h"

namespace spillway {

struct ResponseFraming {
  std::optional<size_t> content_length;
  bool is_chunked = false;
  bool closes = false;           // the connection ends with this answer
  bool says_keep_alive = false;  // to an HTTP/1.0 client, which would not expect it
};

// "HTTP/1.1 200 OK" to the blank line. `date` as HTTP writes it; `cors_lines` are whole lines.
std::string response_head(const HttpAnswer& answer, const ResponseFraming& framing,
                          std::string_view date, std::string_view cors_lines);

// "Tue, 17 Nov 2026 10:00:00 GMT"
std::string http_date(std::time_t seconds);

// Whether answers with this status have a body at all.
bool status_has_body(int status);

}  // namespace spillway
