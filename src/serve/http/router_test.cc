// SPDX-License-Identifier: Apache-2.0
#include "serve/http/router.h"

#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/log.h"
#include "serve/http/http_server.h"
#include "serve/http/test_http_client.h"
#include "serve/http/test_http_handler.h"

namespace spillway {
namespace {

Router::Action says(std::string text) {
  return [text](const auto&, const auto& reply) { reply->send({200, "text/plain", text, {}}); };
}

void add_routes(Router& router) {
  router.add(HttpMethod::kGet, "/health", Router::Access::kProbe,
             [](const auto& request, const auto& reply) {
               reply->send({request->draining ? 503 : 200, "text/plain", "health", {}});
             });
  router.add(HttpMethod::kGet, "/v1/models", Router::Access::kWithKey, says("models"));
  router.add(HttpMethod::kPost, "/v1/completions", Router::Access::kWithKey, says("completion"));
  router.add(HttpMethod::kGet, "/v1/completions", Router::Access::kWithKey, says("list"));
}

std::string code_of(const std::optional<TestResponse>& response) {
  return response ? nlohmann::json::parse(response->body)["error"]["code"].get<std::string>()
                  : "no response";
}

TEST(RouterTest, TheRootIsOnePathAndNotTheBeginningOfAll) {
  Router router;
  add_routes(router);
  router.add(HttpMethod::kGet, "/", Router::Access::kWithKey, says("page"));
  router.add(HttpMethod::kGet, "/v1/models/", Router::Access::kWithKey, says("model"));
  HttpServer server({}, router);
  TestClient client(server.port());
  EXPECT_EQ(client.ask(get("/"))->body, "page");
  EXPECT_EQ(client.ask(get("/?x"))->body, "page");
  EXPECT_EQ(client.ask(get("/v1/models/a/b"))->body, "model");
  EXPECT_EQ(client.ask(get("/v1/models/a/"))->body, "model");
  EXPECT_EQ(client.ask(get("/v1/models/"))->body, "models");
  for (const char* path : {"//", "/x", "/v1"})
    EXPECT_EQ(client.ask(get(path))->status, 404) << path;
}

TEST(RouterTest, FindsExactPathsAndMethods) {
  Router router;
  add_routes(router);
  HttpServer server({}, router);
  TestClient client(server.port());
  EXPECT_EQ(client.ask(get("/v1/models?limit=5"))->body, "models");
  EXPECT_EQ(client.ask(get("/v1/%6dodels"))->body, "models");
  EXPECT_EQ(client.ask(post("/v1/completions", "{}"))->body, "completion");
  EXPECT_EQ(client.ask(get("/v1/completions"))->body, "list");
  EXPECT_EQ(
      client.ask("HEAD /v1/models HTTP/1.1\r\nHost: h\r\n\r\n", true)->headers.at("content-length"),
      "6");
  EXPECT_EQ(client.ask(get("/v1/models/"))->body, "models");
  EXPECT_EQ(client.ask(post("/v1/completions/?x", "{}"))->body, "completion");
  for (const char* path : {"/", "/v1", "/v1/models//", "//v1/models", "/V1/models", "/v1%2Fmodels",
                           "/v1/./models", "/v1/../v1/models", "/../../../etc/passwd",
                           "/%2e%2e/%2e%2e/etc/passwd", "/v1/models%20", "/..%5c..%5cwindows"}) {
    const auto response = client.ask(get(path));
    ASSERT_TRUE(response) << path;
    EXPECT_EQ(response->status, 404) << path;
    EXPECT_EQ(code_of(response), "unknown_url");
  }
  const auto response = client.ask("DELETE /v1/completions HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 405);
  EXPECT_EQ(response->headers.at("allow"), "OPTIONS, POST, GET, HEAD");
  EXPECT_EQ(code_of(response), "method_not_allowed");
}

TEST(RouterTest, AnswersOptions) {
  Router router;
  add_routes(router);
  HttpServer server({}, router);
  TestClient client(server.port());
  auto response = client.ask("OPTIONS /v1/models HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 204);
  EXPECT_EQ(response->headers.at("allow"), "OPTIONS, GET, HEAD");
  EXPECT_FALSE(response->headers.contains("content-length"));
  response = client.ask("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 204);
  EXPECT_EQ(response->headers.at("allow"), "OPTIONS, GET, HEAD, POST");
  EXPECT_EQ(client.ask("OPTIONS /none HTTP/1.1\r\nHost: h\r\n\r\n")->status, 404);
}

TEST(RouterTest, WantsAKeyForAllButOpenRoutes) {
  Router router(KeyRing({"sk-right"}));
  add_routes(router);
  HttpServer server({}, router);
  TestClient client(server.port());
  const std::string right = "Authorization: Bearer sk-right\r\n";
  for (const char* path : {"/v1/models", "/v1/completions", "/none", "/"}) {
    for (const char* wrong :
         {"", "Authorization: Bearer sk-wrong\r\n", "Authorization: sk-right\r\n",
          "X-Api-Key: sk-wrong\r\n", "Authorization:\r\n"}) {
      const auto response = client.ask(get(path, wrong));
      ASSERT_TRUE(response) << path;
      EXPECT_EQ(response->status, 401) << path << " " << wrong;
      EXPECT_TRUE(response->headers.contains("www-authenticate"));
      EXPECT_EQ(response->body.find("sk-"), std::string::npos);
    }
    EXPECT_NE(client.ask(get(path, right))->status, 401) << path;
  }
  EXPECT_EQ(client.ask(get("/health"))->status, 200);
  EXPECT_EQ(client.ask("DELETE /health HTTP/1.1\r\nHost: h\r\n\r\n")->status, 401);
  EXPECT_EQ(client.ask(get("/v1/models", right))->body, "models");
  EXPECT_EQ(client.ask(get("/v1/models", "X-Api-Key: sk-right\r\n"))->body, "models");
  EXPECT_EQ(client.ask(get("/v1/models", "api-key: sk-right\r\n"))->body, "models");
}

TEST(RouterTest, RefusesStrangersBeforeTheirBody) {
  Router router(KeyRing({"sk-right"}));
  add_routes(router);
  HttpServer server({}, router);
  TestClient client(server.port());
  const auto response = client.ask(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\nExpect: "
      "100-continue\r\n\r\n");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 401);
  EXPECT_EQ(response->headers.at("connection"), "close");
  EXPECT_TRUE(client.is_closed_by_peer());
}

TEST(RouterTest, WantsBodiesAsTheyAre) {
  Router router(KeyRing({"sk-right"}));
  add_routes(router);
  HttpServer server({}, router);
  const std::string right = "Authorization: Bearer sk-right\r\n";
  for (const char* const encoding : {"gzip", "br", "deflate", "GZIP", "identity, gzip", "zstd"}) {
    const auto response = TestClient(server.port())
                              .ask(post("/v1/completions", "\x1f\x8b",
                                        right + "Content-Encoding: " + encoding + "\r\n"));
    ASSERT_TRUE(response) << encoding;
    EXPECT_EQ(response->status, 415) << encoding;
    EXPECT_EQ(code_of(response), "unsupported_content_encoding");
  }
  for (const char* const encoding : {"identity", "Identity", ""})
    EXPECT_EQ(
        TestClient(server.port())
            .ask(post("/v1/completions", "{}", right + "Content-Encoding: " + encoding + "\r\n"))
            ->status,
        200)
        << encoding;
}

TEST(RouterTest, ForeignNamesAndPagesGetNothingButHealth) {
  Router router(std::nullopt, HostCheck({}, {}));
  add_routes(router);
  HttpServer server({}, router);
  TestClient client(server.port());
  const auto ask = [&](const std::string& path, const std::string& headers) {
    return client.ask("GET " + path + " HTTP/1.1\r\n" + headers + "\r\n");
  };
  EXPECT_EQ(ask("/v1/models", "Host: localhost:1\r\n")->status, 200);
  const auto refused = ask("/v1/models", "Host: evil.example\r\n");
  EXPECT_EQ(refused->status, 403);
  EXPECT_EQ(code_of(refused), "host_not_allowed");
  EXPECT_EQ(code_of(ask("/v1/models", "Host: localhost\r\nOrigin: http://evil.example\r\n")),
            "origin_not_allowed");
  EXPECT_EQ(ask("/health", "Host: evil.example\r\nOrigin: http://evil.example\r\n")->status, 200);
  // A page may post text without a preflight, so such a body must not even be read.
  const auto posted = client.ask(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
      "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(posted->status, 403);
}

TEST(RouterTest, TellsRouteAndStatusOfEveryAnswer) {
  Router router(KeyRing({"sk-right"}));
  add_routes(router);
  router.add(HttpMethod::kGet, "/v1/models/", Router::Access::kWithKey, says("model"));
  std::mutex mutex;
  std::vector<std::pair<std::string, int>> answers;
  router.observe([&](std::string_view route, int status) {
    const std::lock_guard lock(mutex);
    answers.emplace_back(route, status);
  });
  HttpServer server({}, router);
  TestClient client(server.port());
  const std::string right = "Authorization: Bearer sk-right\r\n";
  client.ask(get("/health"));
  client.ask(get("/v1/models"));
  client.ask(get("/v1/models/some/name?x", right));
  client.ask(get("/none", right));
  client.ask("PUT /v1/models HTTP/1.1\r\nHost: h\r\n" + right + "\r\n");
  client.ask("NONSENSE\r\n\r\n");
  EXPECT_TRUE(client.is_closed_by_peer());
  const std::lock_guard lock(mutex);
  const std::vector<std::pair<std::string, int>> expected = {
      {"/health", 200}, {"/v1/models", 401}, {"/v1/models/", 200},
      {"", 404},        {"/v1/models", 405}, {"", 400}};
  EXPECT_EQ(answers, expected);
}

TEST(RouterTest, ThousandsOfEarlyAnswersInOneWrite) {
  Router router;
  add_routes(router);
  HttpServer server({}, router);
  TestClient client(server.port());
  std::string requests;
  for (int i = 0; i < 1500; ++i) requests += get("/none");
  std::thread sender([&] { client.send(requests); });
  for (int i = 0; i < 1500; ++i) ASSERT_EQ(client.read_response()->status, 404);
  sender.join();
  EXPECT_EQ(client.ask(get("/health"))->status, 200);
}

TEST(RouterTest, LogsOneLineARequestWithoutSecrets) {
  const LogLevel before = log_level();
  set_log_level(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  {
    Router router(KeyRing({"sk-right"}));
    add_routes(router);
    HttpServer server({}, router);
    TestClient client(server.port());
    client.ask(post("/v1/completions?x=%0a", "the body", "Authorization: Bearer sk-right\r\n"));
    client.ask(get("/none", "Authorization: Bearer sk-wrong\r\n"));
    client.ask("GET \x1b[31m\x01 HTTP/1.1\r\nHost: h\r\n\r\n");
    client.is_closed_by_peer();
  }
  set_log_level(before);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3) << log;
  EXPECT_NE(log.find("\"POST /v1/completions?x=%0a\" 200"), std::string::npos) << log;
  EXPECT_NE(log.find("\"GET /none\" 401"), std::string::npos) << log;
  EXPECT_NE(log.find(" 400 "), std::string::npos) << log;
  for (const char* secret : {"sk-", "the body", "\x1b"})
    EXPECT_EQ(log.find(secret), std::string::npos) << log;
}

}  // namespace
}  // namespace spillway
