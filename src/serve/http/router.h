// SPDX-License-Identifier: Apache-2.0
// Which function answers which path.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/http/http_handler.h"
#include "serve/http/key_ring.h"

namespace spillway {

// "/v1/models/" is "/v1/models"; "/" and "//" stay as they are.
std::string_view without_trailing_slash(std::string_view path);

// Exact paths, also with one slash behind them; no patterns, no files. Asks for a key before it
// says which paths there are. HEAD is answered as GET, OPTIONS with the methods of a path.
// Thread-safe once all routes are added.
class Router : public HttpHandler {
 public:
  using Action =
      std::function<void(std::shared_ptr<const HttpRequest>, std::shared_ptr<HttpReply>)>;
  // kOpen: without a key, and also while the server drains (its request says so). Others get 503
  // then.
  enum class Access : uint8_t { kOpen, kWithKey };

  // No keys: everyone may call.
  explicit Router(std::optional<KeyRing> keys = std::nullopt) : keys_(std::move(keys)) {}
  // Null: there are none.
  const KeyRing* keys() const { return keys_ ? &*keys_ : nullptr; }

  // A path that ends in a slash is of all that begin with it and go on.
  void add(HttpMethod method, std::string path, Access access, Action action);

  std::optional<HttpAnswer> try_answer_head(const HttpRequest& head) override;
  void handle(std::shared_ptr<const HttpRequest> request,
              std::shared_ptr<HttpReply> reply) override;

 private:
  struct Route {
    HttpMethod method;
    Access access;
    Action action;
  };
  const Route* find(const HttpRequest& request) const;
  // Null where nothing is at this path.
  const std::vector<Route>* find_path(std::string_view path) const;
  bool may_call(const HttpRequest& request) const;
  std::string allowed_methods(const std::string& path) const;

  std::optional<KeyRing> keys_;
  std::map<std::string, std::vector<Route>, std::less<>> routes_;
};

}  // namespace spillway
