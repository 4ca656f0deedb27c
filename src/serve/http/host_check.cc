// SPDX-License-Identifier: Apache-2.0
#include "serve/http/host_check.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "serve/http/http_reply.h"
#include "serve/http/http_text.h"

namespace spillway {
namespace {

constexpr size_t kShown = 200;  // shown bytes of a name that a client made up

bool is_address(const std::string& host) {
  in6_addr parsed = {};
  return inet_pton(AF_INET, host.c_str(), &parsed) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &parsed) == 1;
}

// Returns "http://host:port" without the scheme, and without the scheme's default port; "" if
// `origin` is no page's, such as "null".
std::string_view authority_of(std::string_view origin) {
  for (const auto& [scheme, port] :
       {std::pair<std::string_view, std::string_view>{"http://", ":80"}, {"https://", ":443"}}) {
    if (!equal_ignoring_case(origin.substr(0, scheme.size()), scheme)) continue;
    origin.remove_prefix(scheme.size());
    if (origin.ends_with(port)) origin.remove_suffix(port.size());
    return origin;
  }
  return {};
}

HttpAnswer refusal(const char* code, const std::string& message) {
  return error_answer(ApiError(403, code, "", message));
}

}  // namespace

std::string host_name_of(std::string_view authority) {
  std::string_view host = authority, port;
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    if (end == std::string_view::npos) return {};
    port = host.substr(end + 1);
    host = host.substr(1, end - 1);
  } else if (const size_t colon = host.find(':'); colon != std::string_view::npos) {
    // An IPv6 address without brackets has several colons.
    if (host.find(':', colon + 1) == std::string_view::npos) {
      port = host.substr(colon);
      host = host.substr(0, colon);
    }
  }
  const bool has_port = port.starts_with(':');
  if (!port.empty() && (!has_port || port.find_first_not_of("0123456789", 1) != port.npos))
    return {};
  if (host.ends_with('.')) host.remove_suffix(1);
  return lower_ascii(host);
}

HostCheck::HostCheck(const std::vector<std::string>& hosts, std::vector<std::string> origins)
    : hosts_{"localhost"}, cors_(std::move(origins)) {
  for (std::string_view list : hosts) {
    while (true) {
      const size_t comma = std::min(list.find(','), list.size());
      add(trim_blanks(list.substr(0, comma)));
      if (comma == list.size()) break;
      list.remove_prefix(comma + 1);
    }
  }
}

void HostCheck::add(std::string_view host) {
  any_ = any_ || host == "*";
  hosts_.push_back(host_name_of(host));
  const bool is_host = !hosts_.back().empty() && is_header_value(host) &&
                       host.find_first_of(" /@") == std::string_view::npos;
  SPW_CHECK(host == "*" || is_host, kInvalidArgument,
            "--allowed-hosts: '{}' is no host; write '*' or e.g. 'llm.example'", printable(host));
}

bool HostCheck::allows(std::string_view host) const {
  const std::string name = host_name_of(host);
  // An address cannot be redirected to this server as a page's own name can (DNS rebinding).
  return any_ || (!name.empty() && (is_address(name) ||
                                    std::find(hosts_.begin(), hosts_.end(), name) != hosts_.end()));
}

// Accepts the server's own page, one behind a proxy under a name that the server answers to, and
// those that --cors allows.
bool HostCheck::allows_origin(std::string_view origin, std::string_view host) const {
  if (any_ || cors_.allows(origin)) return true;
  const std::string_view authority = authority_of(origin);
  if (authority.empty()) return false;
  for (const std::string_view port : {":80", ":443"})
    if (host.ends_with(port)) host.remove_suffix(port.size());
  if (equal_ignoring_case(authority, host)) return true;
  const std::string name = host_name_of(authority);
  // "localhost", the first name, does not count: other pages of this machine are not this server's.
  return std::find(hosts_.begin() + 1, hosts_.end(), name) != hosts_.end();
}

std::optional<HttpAnswer> HostCheck::try_refuse(const HttpRequest& request) const {
  const std::string_view host = request.header("host");
  const bool has_host = std::any_of(request.headers.begin(), request.headers.end(),
                                    [](const HttpHeader& of) { return of.name == "host"; });
  // HTTP/1.0 requests may lack a Host; browsers send no such requests.
  if (has_host && !allows(host)) {
    const std::string shown = printable(host_name_of(host), kShown);
    return refusal("host_not_allowed",
                   fmt::format("this server does not answer to the name '{}'; start it with "
                               "--allowed-hosts {} if it should",
                               shown, shown.empty() ? "NAME" : shown));
  }
  const std::string_view origin = request.header("origin");
  if (origin.empty() || allows_origin(origin, host)) return std::nullopt;
  const std::string shown = printable(origin, kShown);
  return refusal("origin_not_allowed",
                 fmt::format("web pages of '{}' may not call this server; start it with --cors {} "
                             "if they may",
                             shown, shown == "null" ? "'*'" : shown));
}

}  // namespace spillway
