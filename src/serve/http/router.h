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

#include "serve/http/host_check.h"
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
  // kProbe: answered to everyone, under any name, while the server drains (its request says so)
  // and has too many connections. kOpen: without a key. Others get 503 while the server drains.
  enum class Access : uint8_t { kProbe, kOpen, kWithKey };

  // No keys: everyone may call. No `hosts`: under any name, and any web page.
  explicit Router(std::optional<KeyRing> keys = std::nullopt,
                  std::optional<HostCheck> hosts = std::nullopt)
      : keys_(std::move(keys)), hosts_(std::move(hosts)) {}
  // Null: there are none.
  const KeyRing* keys() const { return keys_ ? &*keys_ : nullptr; }

  // Called with each answer's route, as it was added ("" for what has none), and its status. On I/O
  // threads; set before the server listens.
  using Observer = std::function<void(std::string_view route, int status)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

  // A path that ends in a slash is of all that begin with it and go on.
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
  // Null where nothing is at this path.
  const Routes::value_type* find_path(std::string_view path) const;
  bool may_call(const HttpRequest& request) const;
  std::string allowed_methods(const std::string& path) const;

  std::optional<KeyRing> keys_;
  std::optional<HostCheck> hosts_;
  Observer observer_;
  Routes routes_;
};

}  // namespace spillway
