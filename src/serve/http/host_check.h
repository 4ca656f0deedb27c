// SPDX-License-Identifier: Apache-2.0
// Which names a server answers to, and for which web pages: what keeps pages of strangers away from
// a server that asks for no key because only this machine can reach it. Browsers on this machine
// can, too, and run what any page tells them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/cors.h"
#include "serve/http/http_request.h"

namespace spillway {

// Never changes, so threads may share it.
class HostCheck {
 public:
  // Beside `hosts`, "*" for any, addresses and "localhost" are good names: a page whose own name
  // was made to lead here (DNS rebinding) has another. One text may have several, with commas.
  // `origins` as for Cors. Throws kInvalidArgument for what is no host.
  HostCheck(const std::vector<std::string>& hosts, std::vector<std::string> origins);

  // The answer to a request under a foreign name, or of a page that is neither this server's nor
  // allowed: 403. None where the request may go on.
  [[nodiscard]] std::optional<HttpAnswer> try_refuse(const HttpRequest& request) const;

 private:
  void add(std::string_view host);
  bool knows(std::string_view host) const;
  bool allows_origin(std::string_view origin, std::string_view host) const;

  std::vector<std::string> hosts_;  // in lower case
  bool any_ = false;
  Cors cors_;
};

// "host:port", with brackets around IPv6, as the host in lower case without port, brackets and a
// dot at its end; "" where this is no host.
std::string host_name_of(std::string_view authority);

}  // namespace spillway
