// SPDX-License-Identifier: Apache-2.0
// How the server shuts down: requests in progress are answered, new connections are refused.
#include <gtest/gtest.h>

#include <thread>

#include "serve/http/http_server.h"
#include "serve/http/router.h"
#include "serve/http/test_http_client.h"
#include "serve/http/test_http_handler.h"

namespace spillway {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A server whose /work needs a key and is held until released, and whose /health answers anyone.
class DrainTest : public testing::Test {
 protected:
  DrainTest() {
    router_.add(HttpMethod::kGet, "/work", Router::Access::kWithKey,
                [this](auto request, auto reply) {
                  holding_.handle(std::move(request), std::move(reply));
                });
    router_.add(HttpMethod::kGet, "/health", Router::Access::kProbe,
                [](const auto& request, const auto& reply) {
                  reply->send({request->draining ? 503 : 200, "text/plain", "", {}});
                });
  }

  HoldingHandler holding_;
  Router router_;
};

TEST_F(DrainTest, AnswersWhatIsInFlight) {
  for (int round = 0; round < 10; ++round) {
    HttpServer server({}, router_);
    std::vector<TestClient> clients;
    std::vector<HeldRequest> held;
    for (int i = 0; i < 8; ++i) {
      clients.emplace_back(server.port());
      clients.back().send(get("/work"));
      held.push_back(holding_.next());
      if (i % 2 == 0) held.back().reply->begin_stream(200, "text/event-stream");
    }
    TestClient idle(server.port());
    EXPECT_EQ(idle.ask(get("/health"))->status, 200);
    server.stop_accepting();
    EXPECT_FALSE(TestClient(server.port()).is_connected());
    EXPECT_FALSE(server.wait_until_answered(milliseconds(1)));
    const auto response = idle.ask(get("/work"));
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 503);
    EXPECT_TRUE(response->headers.contains("retry-after"));
    EXPECT_EQ(response->headers.at("connection"), "close");
    EXPECT_TRUE(idle.is_closed_by_peer());

    std::thread engine([&] {
      for (size_t i = 0; i < held.size(); ++i) {
        if (i % 2 == 0) {
          held[i].reply->write("answer");
          held[i].reply->finish();
        } else {
          held[i].reply->send({200, "text/plain", "answer", {}});
        }
      }
    });
    EXPECT_TRUE(server.wait_until_answered(seconds(20)));
    engine.join();
    server.stop_now();
    for (TestClient& client : clients) {
      const auto answer = client.read_response();
      ASSERT_TRUE(answer);
      EXPECT_TRUE(answer->is_whole);
      EXPECT_EQ(answer->body, "answer");
      EXPECT_TRUE(client.is_closed_by_peer());
    }
    EXPECT_EQ(server.counters().open_connections, 0U);
  }
}

TEST_F(DrainTest, NewConnectionsMayBeAccepted) {
  HttpServer server({}, router_);
  server.stop_accepting(HttpServer::NewConnections::kAccepted);
  TestClient client(server.port());
  EXPECT_EQ(client.ask(get("/work"))->status, 503);
  EXPECT_EQ(TestClient(server.port()).ask(get("/health"))->status, 503)
      << "open routes see for themselves";
  server.stop_accepting();
  EXPECT_FALSE(TestClient(server.port()).is_connected());
}

TEST_F(DrainTest, PipelinedRequestsAreLeftWhenTheConnectionEnds) {
  HttpServer server({}, router_);
  TestClient client(server.port());
  client.send(get("/work") + get("/work"));
  const HeldRequest held = holding_.next();
  server.stop_accepting();
  held.reply->send({200, "text/plain", "first", {}});
  const auto first = client.read_response();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->headers.at("connection"), "close");
  EXPECT_FALSE(client.read_response());
}

TEST_F(DrainTest, StopsAtOnceWhenItMust) {
  HttpServer server({}, router_);
  std::vector<TestClient> clients;
  std::atomic<int> gone = 0;
  std::vector<HeldRequest> held;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(get("/work"));
    held.push_back(holding_.next());
    held.back().reply->on_gone([&] { ++gone; });
  }
  server.stop_accepting();
  EXPECT_FALSE(server.wait_until_answered(milliseconds(10)));
  server.stop_now();
  EXPECT_EQ(gone, 8);
  EXPECT_TRUE(server.wait_until_answered(milliseconds(0)));
  for (TestClient& client : clients) EXPECT_TRUE(client.is_closed_by_peer());
  server.stop_now();
  server.stop_accepting();
}

}  // namespace
}  // namespace spillway
