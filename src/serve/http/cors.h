// SPDX-License-Identifier: Apache-2.0
// Decides which web pages may call this server (the Fetch standard's CORS protocol).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/http_request.h"

namespace spillway {

// Immutable, so threads may share it.
class Cors {
 public:
  // `origins` are as browsers write them, or "*"; with none, pages of other origins may not call.
  // Throws kInvalidArgument for an origin that no browser would send.
  explicit Cors(std::vector<std::string> origins);

  // Returns whether a page of this origin may call.
  bool allows(std::string_view origin) const;
  // Returns the header lines for the answer to `request`, each with its line end.
  std::string lines(const HttpRequest& request) const;
  // Returns the answer to a preflight request; nullopt if `request` is not one, or if its origin
  // may not call.
  std::optional<HttpAnswer> try_preflight(const HttpRequest& request) const;

 private:
  std::vector<std::string> origins_;
  bool any_ = false;
};

}  // namespace spillway
