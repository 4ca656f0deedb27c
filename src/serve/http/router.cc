// SPDX-License-Identifier: Apache-2.0
#include "serve/http/router.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/printable.h"
#include "serve/http/http_text.h"

namespace spillway {

std::string_view without_trailing_slash(std::string_view path) {
  if (path.size() > 2 && path.ends_with('/')) path.remove_suffix(1);
  return path;
}

void Router::add(HttpMethod method, std::string path, Access access, Action action) {
  routes_[std::move(path)].push_back({method, access, std::move(action)});
}

std::optional<HttpAnswer> Router::try_answer_head(const HttpRequest& head) {
  const Route* route = find(head);
  const bool is_probe = route != nullptr && route->access == Access::kProbe;
  if (hosts_ && !is_probe) {
    if (auto refused = hosts_->try_refuse(head)) return refused;
  }
  const bool is_open = is_probe || (route != nullptr && route->access == Access::kOpen);
  if (!is_open && !may_call(head)) {
    const bool has_none = !KeyRing::has_key(head);
    return error_answer(ApiError(401, has_none ? "missing_api_key" : "invalid_api_key", "",
                                 has_none ? "an API key is needed: 'Authorization: Bearer KEY'"
                                          : "this API key is not known here"),
                        {{"WWW-Authenticate", "Bearer"}});
  }
  if (head.method == HttpMethod::kOptions && route == nullptr &&
      (head.path == "*" || find_path(head.path) != nullptr))
    return HttpAnswer{204, {}, {}, {{"Allow", allowed_methods(head.path)}}};
  if (route == nullptr && find_path(head.path) == nullptr)
    return error_answer(ApiError(
        404, "unknown_url", "",
        fmt::format("there is no {} {}", http_method_name(head.method), printable(head.path))));
  if (route == nullptr) {
    const std::string allowed = allowed_methods(head.path);
    return error_answer(ApiError(405, "method_not_allowed", "",
                                 fmt::format("{} takes {}, not {}", printable(head.path), allowed,
                                             http_method_name(head.method))),
                        {{"Allow", allowed}});
  }
  if (head.draining && !is_probe)
    return error_answer(
        ApiError(503, "shutting_down", "", "the server is shutting down; try again later"),
        {{"Retry-After", "10"}});
  const std::string_view encoding = head.header("content-encoding");
  if (!encoding.empty() && !equal_ignoring_case(encoding, "identity"))
    return error_answer(ApiError(415, "unsupported_content_encoding", "",
                                 fmt::format("Content-Encoding '{}' is not supported; send the "
                                             "body as it is, without compression",
                                             printable(encoding, 40))),
                        {{"Accept-Encoding", "identity"}});
  return std::nullopt;
}

bool Router::is_probe(const HttpRequest& head) const {
  const Route* const route = find(head);
  return route != nullptr && route->access == Access::kProbe;
}

void Router::answered(const HttpRequest* request, int status) {
  if (!observer_) return;
  const auto* const found = request != nullptr ? find_path(request->path) : nullptr;
  observer_(found != nullptr ? std::string_view(found->first) : std::string_view(), status);
}

void Router::handle(std::shared_ptr<const HttpRequest> request, std::shared_ptr<HttpReply> reply) {
  const Route* route = find(*request);
  SPW_ASSERT(route != nullptr);
  route->action(std::move(request), std::move(reply));
}

const Router::Route* Router::find(const HttpRequest& request) const {
  const auto* const found = find_path(request.path);
  if (found == nullptr) return nullptr;
  const HttpMethod wanted = request.method == HttpMethod::kHead ? HttpMethod::kGet : request.method;
  for (const Route& route : found->second) {
    if (route.method == wanted) return &route;
  }
  return nullptr;
}

const Router::Routes::value_type* Router::find_path(std::string_view path) const {
  path = without_trailing_slash(path);
  if (const auto found = routes_.find(path); found != routes_.end()) return &*found;
  for (const auto& entry : routes_) {
    const std::string& known = entry.first;
    // "/" is a path by itself, not a prefix of all paths.
    if (known.size() > 1 && known.ends_with('/') && path.size() > known.size() &&
        path.starts_with(known))
      return &entry;
  }
  return nullptr;
}

bool Router::may_call(const HttpRequest& request) const {
  return !keys_ || keys_->try_find(request).has_value();
}

// Returns the methods of one path, or of all paths for "*".
std::string Router::allowed_methods(const std::string& path) const {
  std::string result = "OPTIONS";
  for (const auto& entry : routes_) {
    if (path != "*" && &entry != find_path(path)) continue;
    for (const Route& route : entry.second) {
      const std::string name(http_method_name(route.method));
      if (result.find(name) != std::string::npos) continue;
      result += ", ";
      result += name;
      if (route.method == HttpMethod::kGet) result += ", HEAD";
    }
  }
  return result;
}

}  // namespace spillway
