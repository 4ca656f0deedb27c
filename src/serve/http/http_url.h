// SPDX-License-Identifier: Apache-2.0
// The address of a server, as people type it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

struct HttpUrl {
  std::string host;  // a name or an address; IPv6 without its brackets
  uint16_t port = 80;
  std::string path;  // "" or "/prefix", without a slash at its end

  // "host:port", with brackets around IPv6: what a Host header has.
  std::string authority() const;
  // Whether what is sent there stays on this machine.
  bool is_this_machine() const;
};

// "http://HOST[:PORT][/PATH]", "HOST:PORT[/PATH]" or ":PORT[/PATH]" of this machine. Throws
// kInvalidArgument, naming `option`: also for https, for users and passwords, and for queries.
HttpUrl parse_http_url(std::string_view text, std::string_view option);

}  // namespace spillway
