// SPDX-License-Identifier: Apache-2.0
#include "serve/http/cors.h"

#include <gtest/gtest.h>

#include "base/test_scoped_folder.h"
#include "serve/http/http_server.h"
#include "serve/http/router.h"
#include "serve/http/test_http_client.h"
#include "serve/http/test_http_handler.h"

namespace spillway {
namespace {

std::string allowed_origin(const std::optional<TestResponse>& response) {
  if (!response) return "no response";
  const auto found = response->headers.find("access-control-allow-origin");
  return found == response->headers.end() ? "none" : found->second;
}

const char* const kPreflight =
    "OPTIONS /v1/models HTTP/1.1\r\nHost: h\r\nOrigin: https://a.example\r\n"
    "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, "
    "content-type\r\n\r\n";

class CorsTest : public testing::Test {
 protected:
  CorsTest() : router_(KeyRing({"sk-right"})) {
    router_.add(HttpMethod::kGet, "/v1/models", Router::Access::kWithKey,
                [](const auto&, const auto& reply) {
                  reply->begin_stream(200, "text/event-stream");
                  reply->finish();
                });
  }
  std::optional<TestResponse> ask(const std::vector<std::string>& origins,
                                  const std::string& request) {
    options_.cors_origins = origins;
    HttpServer server(options_, router_);
    return TestClient(server.port()).ask(request);
  }

  HttpOptions options_;
  Router router_;
};

TEST_F(CorsTest, IsOffUnlessAskedFor) {
  EXPECT_EQ(allowed_origin(ask({}, get("/v1/models", "Origin: https://a.example\r\n"))), "none");
  const auto response = ask({}, kPreflight);
  EXPECT_EQ(response->status, 401) << "no preflight without origins; it needs a key like the rest";
  EXPECT_EQ(allowed_origin(response), "none");
}

TEST_F(CorsTest, AllowsListedOrigins) {
  const std::vector<std::string> origins = {"https://b.example", "https://a.example"};
  auto response =
      ask(origins,
          get("/v1/models", "Authorization: Bearer sk-right\r\nOrigin: https://a.example\r\n"));
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(allowed_origin(response), "https://a.example");
  EXPECT_EQ(response->headers.at("vary"), "Origin");
  response = ask(origins, get("/v1/models", "Origin: https://a.example\r\n"));
  EXPECT_EQ(response->status, 401);
  EXPECT_EQ(allowed_origin(response), "https://a.example") << "pages may see errors, too";
  for (const char* other : {"https://c.example", "http://a.example", "https://a.example.evil",
                            "https://a.example:444", "null", "*"}) {
    response = ask(origins, get("/v1/models", "Origin: " + std::string(other) + "\r\n"));
    EXPECT_EQ(allowed_origin(response), "none") << other;
    EXPECT_EQ(response->headers.at("vary"), "Origin");
  }
}

TEST_F(CorsTest, AllowsAll) {
  EXPECT_EQ(allowed_origin(ask({"*"}, get("/v1/models", "Origin: https://c.example\r\n"))), "*");
  EXPECT_EQ(
      allowed_origin(
          ask({"*"},
              "GET / HTTP/1.1\r\nHost: h\r\nOrigin: null\r\nContent-Length: 99999999999\r\n\r\n")),
      "*");
}

TEST_F(CorsTest, AnswersPreflightsWithoutAKey) {
  for (const auto& origins : {std::vector<std::string>{"*"}, {"https://a.example"}}) {
    const auto response = ask(origins, kPreflight);
    EXPECT_EQ(response->status, 204);
    EXPECT_EQ(allowed_origin(response), origins[0]);
    EXPECT_NE(response->headers.at("access-control-allow-methods").find("POST"), std::string::npos);
    EXPECT_EQ(response->headers.at("access-control-allow-headers"), "authorization, content-type");
    EXPECT_TRUE(response->headers.contains("access-control-max-age"));
  }
  EXPECT_EQ(ask({"https://other.example"}, kPreflight)->status, 401);
}

TEST_F(CorsTest, EchoesOnlyNames) {
  const auto asked = [&](const std::string& names) {
    const auto response = ask({"*"},
                              "OPTIONS / HTTP/1.1\r\nHost: h\r\nOrigin: "
                              "https://a.example\r\nAccess-Control-Request-Method: "
                              "GET\r\nAccess-Control-Request-Headers: " +
                                  names + "\r\n\r\n");
    return response->headers.contains("access-control-allow-headers");
  };
  EXPECT_TRUE(asked("x-a,x-b"));
  EXPECT_FALSE(asked("x a"));
  EXPECT_FALSE(asked("x;a"));
  EXPECT_FALSE(asked(std::string(2000, 'x')));
}

TEST_F(CorsTest, RefusesOriginsThatNoBrowserSends) {
  for (const char* origin :
       {"", "a.example", "https://a.example/", "https://a b", "**", "https://a\r\nX: y"})
    EXPECT_NE(error_of([&] { Cors({origin}); }), "no error") << origin;
  EXPECT_EQ(error_of([] { Cors({"*", "http://localhost:3000"}); }), "no error");
}

}  // namespace
}  // namespace spillway
