// SPDX-License-Identifier: Apache-2.0
#include "serve/http/http_url.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/printable.h"
#include "serve/http/http_text.h"

namespace spillway {
namespace {

constexpr size_t kMostUrlBytes = 4096;
constexpr std::string_view kScheme = "http://", kSecure = "https://";

bool is_host_character(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  return letter || c == '-' || c == '.' || c == '_';
}
bool is_ipv6_character(char c) {
  const bool digit = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || (c >= '0' && c <= '9');
  return digit || c == ':' || c == '.';
}

// Takes the host off `text`, which then is "" or ":PORT" in a valid URL; returns "" if there is no
// host.
std::string_view take_host(std::string_view& text) {
  const bool brackets = text.starts_with('[');
  if (brackets) text.remove_prefix(1);
  const size_t end = std::min(text.find(brackets ? ']' : ':'), text.size());
  const std::string_view host = text.substr(0, end);
  if (brackets && end == text.size()) return {};
  text.remove_prefix(end + (brackets ? 1 : 0));
  const bool ok = brackets ? std::all_of(host.begin(), host.end(), is_ipv6_character)
                           : std::all_of(host.begin(), host.end(), is_host_character);
  return ok ? host : std::string_view();
}

bool take_port(std::string_view text, uint16_t& port) {
  if (text.empty()) return true;
  if (!text.starts_with(':')) return false;
  text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port > 0;
}

bool is_path_character(char c) { return c > 0x20 && c < 0x7F && c != '?' && c != '#'; }

}  // namespace

std::string HttpUrl::authority() const {
  const bool brackets = host.find(':') != std::string::npos;
  return brackets ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

bool HttpUrl::is_this_machine() const {
  return host.starts_with("127.") || host == "::1" || equal_ignoring_case(host, "localhost");
}

HttpUrl parse_http_url(std::string_view text, std::string_view option) {
  const auto begins_with = [&](std::string_view scheme) {
    return equal_ignoring_case(text.substr(0, scheme.size()), scheme);
  };
  SPW_CHECK(!begins_with(kSecure), kInvalidArgument,
            "{} is https, which is not spoken here; let a proxy on this machine do TLS, and give "
            "its http:// address",
            option);
  const auto check = [&](bool ok) {
    SPW_CHECK(ok, kInvalidArgument, "{} is '{}'; give http://HOST:PORT", option, printable(text));
  };
  check(text.size() <= kMostUrlBytes);
  // Also accepts "localhost:8080" and ":8080", but a port is needed, so that a plain word is not
  // taken for a host.
  std::string_view rest = text;
  const bool has_scheme = begins_with(kScheme);
  if (has_scheme) rest.remove_prefix(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash);
  std::string_view path = rest.substr(slash);
  HttpUrl url;
  check(has_scheme || authority.find(':') != std::string_view::npos);
  const bool is_port_alone = !has_scheme && authority.starts_with(':') && authority.size() > 1;
  url.host = is_port_alone ? std::string_view("127.0.0.1") : take_host(authority);
  check(!url.host.empty() && take_port(authority, url.port) &&
        std::all_of(path.begin(), path.end(), is_path_character));
  while (path.ends_with('/')) path.remove_suffix(1);
  url.path = path;
  return url;
}

}  // namespace spillway
