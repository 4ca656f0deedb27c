// SPDX-License-Identifier: Apache-2.0
// Formats the head of an answer.
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
  bool says_keep_alive = false;  // an HTTP/1.0 client must be told so
};

// Returns "HTTP/1.1 200 OK" up to and with the blank line. `date` is in HTTP's format; `cors_lines`
// are whole lines.
std::string response_head(const HttpAnswer& answer, const ResponseFraming& framing,
                          std::string_view date, std::string_view cors_lines);

// Returns a date such as "Tue, 17 Nov 2026 10:00:00 GMT".
std::string http_date(std::time_t seconds);

// Returns whether answers with this status may have a body.
bool status_has_body(int status);

}  // namespace spillway
