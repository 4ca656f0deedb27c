// SPDX-License-Identifier: Apache-2.0
// Which web pages may call this server (the Fetch standard's CORS protocol).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/http_request.h"

namespace spillway {

// Never changes, so threads may share it.
class Cors {
 public:
  // Origins as browsers write them, or "*"; none: pages of other origins may not call. Throws
  // kInvalidArgument for what no browser would send.
  explicit Cors(std::vector<std::string> origins);

  // Whether a page of this origin may call.
  bool allows(std::string_view origin) const;
  // Header lines for the answer to `request`, each with its line end.
  std::string lines(const HttpRequest& request) const;
  // The answer to a browser that asks before it calls; none where this is no such question, or
  // nobody may.
  std::optional<HttpAnswer> try_preflight(const HttpRequest& request) const;

 private:
  std::vector<std::string> origins_;
  bool any_ = false;
};

}  // namespace spillway
