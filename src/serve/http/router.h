// SPDX-License-Identifier: Apache-2.0
// Maps paths and methods to the functions that answer them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/http/host_check.h"
#include "serve/http/http_handler.h"
#include "serve/http/key_ring.h"

namespace spillway {

// Turns "/v1/models/" into "/v1/models"; "/" and "//" stay as they are.
std::string_view without_trailing_slash(std::string_view path);

// Matches exact paths, also with one slash after them; there are no patterns and no files. A key is
// checked before the answer reveals which paths exist. HEAD is answered like GET, OPTIONS with the
// methods of a path. Thread-safe once all routes are added.
class Router : public HttpHandler {
 public:
  using Action =
      std::function<void(std::shared_ptr<const HttpRequest>, std::shared_ptr<HttpReply>)>;
  // kProbe (health checks): answered without a key and under any host name, even while the server
  // drains (the request says so) or has too many connections. kOpen: needs no key. kOpen and
  // kWithKey get 503 while the server drains.
  enum class Access : uint8_t { kProbe, kOpen, kWithKey };

  // No keys: everyone may call. No `hosts`: requests may use any host name and come from any web
  // page.
  explicit Router(std::optional<KeyRing> keys = std::nullopt,
                  std::optional<HostCheck> hosts = std::nullopt)
      : keys_(std::move(keys)), hosts_(std::move(hosts)) {}
  // Returns null if there are no keys.
  const KeyRing* keys() const { return keys_ ? &*keys_ : nullptr; }

  // Called with each answer's route as it was added ("" if none matched) and its status. Called on
  // I/O threads; set it before the server listens.
  using Observer = std::function<void(std::string_view route, int status)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

  // A path that ends in a slash also matches all longer paths that begin with it.
  void add(HttpMethod method, std::string path, Access access, Action action);

  std::optional<HttpAnswer> try_answer_head(const HttpRequest& head) override;
  bool is_probe(const HttpRequest& head) const override;
  void answered(const HttpRequest* request, int status) override;
  void handle(std::shared_ptr<const HttpRequest> request,
              std::shared_ptr<HttpReply> reply) override;

 private:
  struct Route {
    HttpMethod method;
    Access access;
    Action action;
  };
  const Route* find(const HttpRequest& request) const;
  using Routes = std::map<std::string, std::vector<Route>, std::less<>>;
  // Returns null if nothing is at this path.
  const Routes::value_type* find_path(std::string_view path) const;
  bool may_call(const HttpRequest& request) const;
  std::string allowed_methods(const std::string& path) const;

  std::optional<KeyRing> keys_;
  std::optional<HostCheck> hosts_;
  Observer observer_;
  Routes routes_;
};

}  // namespace spillway
