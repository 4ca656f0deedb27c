// SPDX-License-Identifier: Apache-2.0
// Checks which name a request used for the server and which web page sent it. This protects a
// server that asks for no key because only this machine can reach it: browsers on this machine
// reach it, too, and run the scripts of any page.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/cors.h"
#include "serve/http/http_request.h"

namespace spillway {

// Immutable, so threads may share it.
class HostCheck {
 public:
  // Besides `hosts` ("*" for any), addresses and "localhost" are accepted. A page that redirects
  // its own name to this server (DNS rebinding) comes with another name. One text may hold several
  // hosts, separated by commas. `origins` are as for Cors. Throws kInvalidArgument for text that is
  // no host.
  HostCheck(const std::vector<std::string>& hosts, std::vector<std::string> origins);

  // Returns 403 for a request under a foreign name, or from a page that is neither this server's
  // nor allowed; nullopt if the request may go on.
  [[nodiscard]] std::optional<HttpAnswer> try_refuse(const HttpRequest& request) const;

 private:
  void add(std::string_view host);
  bool allows(std::string_view host) const;
  bool allows_origin(std::string_view origin, std::string_view host) const;

  std::vector<std::string> hosts_;  // in lower case
  bool any_ = false;
  Cors cors_;
};

// Returns the host of "host:port" (IPv6 has brackets there), in lower case, without port, brackets
// and final dot; "" if it is no host.
std::string host_name_of(std::string_view authority);

}  // namespace spillway
