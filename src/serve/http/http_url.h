// SPDX-License-Identifier: Apache-2.0
// The address of a server, as users type it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

struct HttpUrl {
  std::string host;  // a name or an address; IPv6 without its brackets
  uint16_t port = 80;
  std::string path;  // "" or "/prefix", without a slash at its end

  // Returns "host:port", with brackets around IPv6, for a Host header.
  std::string authority() const;
  // Returns whether what is sent there stays on this machine.
  bool is_this_machine() const;
};

// Parses "http://HOST[:PORT][/PATH]", "HOST:PORT[/PATH]" or, for this machine, ":PORT[/PATH]".
// Throws kInvalidArgument, naming `option`, for anything else, such as https, user names, passwords
// and queries.
HttpUrl parse_http_url(std::string_view text, std::string_view option);

}  // namespace spillway
