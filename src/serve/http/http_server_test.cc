// SPDX-License-Identifier: Apache-2.0
#include "serve/http/http_server.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/test_scoped_folder.h"
#include "serve/http/test_http_client.h"
#include "serve/http/test_http_handler.h"

namespace spillway {
namespace {

using std::chrono::milliseconds;

TEST(HttpServerTest, AnswersRequestsOfOneConnectionInTurn) {
  EchoHandler handler;
  HttpServer server({}, handler);
  ASSERT_NE(server.port(), 0);
  TestClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    const auto response = client.ask(post("/a%20b?x=%20", "body"));
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->body, "POST /a b?x=%20|body");
    EXPECT_EQ(response->headers.at("content-type"), "text/plain");
    EXPECT_TRUE(response->headers.contains("date"));
    EXPECT_FALSE(response->headers.contains("connection"));
  }
  EXPECT_EQ(server.counters().requests, 3U);
  EXPECT_EQ(server.counters().connections, 1U);
}

TEST(HttpServerTest, EveryAnswerHasAnIdOfItsOwn) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  TestClient client(server.port());
  client.send(get("/"));
  HeldRequest held = handler.next();
  const std::string id = held.request->id;
  EXPECT_EQ(id.size(), 24U);
  EXPECT_EQ(held.request->address(), "127.0.0.1");
  held.reply->send({200, "text/plain", "x", {}});
  EXPECT_EQ(client.read_response()->headers.at("x-request-id"), id);
  client.send(get("/"));
  held = handler.next();
  EXPECT_NE(held.request->id, id);
  held.reply->send({200, "text/plain", "x", {{std::string(kRequestIdHeader), "mine"}}});
  EXPECT_EQ(client.read_response()->headers.at("x-request-id"), "mine");
  client.send("NONSENSE\r\n\r\n");
  const auto refused = client.read_response();
  EXPECT_EQ(refused->status, 400);
  EXPECT_EQ(refused->headers.at("x-request-id").size(), 24U) << "also before there is a request";
}

TEST(HttpServerTest, AnAddressHasNoPortAndNoBrackets) {
  HttpRequest request;
  for (const auto& [peer, address] :
       {std::pair{"10.0.0.1:5", "10.0.0.1"}, {"[::1]:49152", "::1"}, {"?", "?"}}) {
    request.peer = peer;
    EXPECT_EQ(request.address(), address);
  }
}

TEST(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  TestClient client(server.port());
  std::string all;
  for (int i = 0; i < 50; ++i)
    all += i % 2 == 0 ? get("/" + std::to_string(i)) : post("/" + std::to_string(i), "x");
  client.send(all);
  for (int i = 0; i < 50; ++i) {
    const HeldRequest held = handler.next();
    ASSERT_NE(held.reply, nullptr);
    EXPECT_EQ(held.request->path, "/" + std::to_string(i));
    EXPECT_EQ(server.counters().open_replies, 1U) << "one after the other";
    held.reply->send({200, "text/plain", held.request->path, {}});
    const auto response = client.read_response();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->body, "/" + std::to_string(i));
  }
}

TEST(HttpServerTest, ClosesWhenTheClientWantsIt) {
  EchoHandler handler;
  HttpServer server({}, handler);
  TestClient client(server.port());
  const auto response = client.ask(get("/", "Connection: foo, Close\r\n") + get("/2"));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->headers.at("connection"), "close");
  EXPECT_FALSE(client.read_response());
  EXPECT_TRUE(client.is_closed_by_peer());
}

TEST(HttpServerTest, SpeaksHttp10) {
  EchoHandler handler;
  HttpServer server({}, handler);
  TestClient client(server.port());
  auto response = client.ask("GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->body, "GET /old|");
  EXPECT_EQ(response->headers.at("connection"), "keep-alive");
  response = client.ask("GET /old HTTP/1.0\r\n\r\n");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->headers.at("connection"), "close");
  EXPECT_TRUE(client.is_closed_by_peer());
}

TEST(HttpServerTest, SendsNoBodyToHead) {
  EchoHandler handler;
  HttpServer server({}, handler);
  TestClient client(server.port());
  const auto response = client.ask("HEAD /x HTTP/1.1\r\nHost: t\r\n\r\n", true);
  ASSERT_TRUE(response);
  EXPECT_EQ(response->headers.at("content-length"), "8");
  EXPECT_EQ(client.ask(get("/y"))->body, "GET /y|") << "nothing of a body in between";
}

TEST(HttpServerTest, SaysContinueWhenItWantsTheBody) {
  EchoHandler handler;
  HttpOptions options;
  options.most_body_bytes = 100;
  HttpServer server(options, handler);
  TestClient client(server.port());
  auto response =
      client.ask("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 100);
  EXPECT_EQ(client.ask("abc")->body, "POST /|abc");
  response = client.ask(
      "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 101\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 413);
  EXPECT_TRUE(client.is_closed_by_peer());
}

TEST(HttpServerTest, TakesBodiesInChunks) {
  EchoHandler handler;
  HttpServer server({}, handler);
  TestClient client(server.port());
  const std::string head = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: Chunked\r\n\r\n";
  EXPECT_EQ(
      client.ask(head + "3\r\nabc\r\n0A;name=\"v\"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n")->body,
      "POST /|abc0123456789");
  EXPECT_EQ(client.ask(head + "0\r\n\r\n" + get("/next"))->body, "POST /|");
  EXPECT_EQ(client.read_response()->body, "GET /next|");
}

TEST(HttpServerTest, AnswersForHandlersThatFail) {
  FunctionHandler handler([](const auto& request, const auto& reply) {
    if (request->path == "/api") throw ApiError(429, "busy", "n", "not now");
    if (request->path == "/bug") throw std::runtime_error("secret details");
    if (request->path == "/twice") {
      reply->send({200, "text/plain", "once", {}});
      reply->send({200, "text/plain", "twice", {}});
    }
    if (request->path == "/inject")
      reply->send({200, "text/plain", "", {{"X", "a\r\nSet-Cookie: b"}}});
    // On other paths the reply is dropped.
  });
  HttpServer server({}, handler);
  TestClient client(server.port());
  auto response = client.ask(get("/api"));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 429);
  EXPECT_EQ(response->headers.at("content-type"), "application/json");
  EXPECT_EQ(
      response->body,
      R"({"error":{"message":"not now","type":"rate_limit_error","param":"n","code":"busy"}})");
  for (const char* path : {"/bug", "/inject", "/dropped"}) {
    response = client.ask(get(path));
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 500) << path;
    EXPECT_EQ(response->body.find("secret"), std::string::npos);
    EXPECT_EQ(nlohmann::json::parse(response->body)["error"]["type"], "server_error");
  }
  EXPECT_EQ(client.ask(get("/twice"))->body, "once");
  EXPECT_EQ(client.ask(get("/api"))->status, 429) << "the connection goes on";
}

TEST(HttpServerTest, AnswersFromOtherThreadsAndAfterItsEnd) {
  HoldingHandler handler;
  HeldRequest late;
  {
    HttpServer server({}, handler);
    TestClient client(server.port());
    client.send(get("/1"));
    const HeldRequest held = handler.next();
    std::thread([&] { EXPECT_TRUE(held.reply->send({200, "text/plain", "there", {}})); }).join();
    EXPECT_EQ(client.read_response()->body, "there");
    client.send(get("/2"));
    late = handler.next();
  }
  EXPECT_TRUE(late.reply->is_gone());
  EXPECT_FALSE(late.reply->send({200, "text/plain", "gone", {}}));
}

TEST(HttpServerTest, ServesManyConnectionsOnSeveralThreads) {
  EchoHandler handler;
  HttpOptions options;
  options.io_threads = 3;
  HttpServer server(options, handler);
  std::vector<TestClient> clients;
  for (int i = 0; i < 200; ++i) clients.emplace_back(server.port());
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < clients.size(); ++i) clients[i].send(get("/" + std::to_string(i)));
    for (size_t i = 0; i < clients.size(); ++i)
      EXPECT_EQ(clients[i].read_response()->body, "GET /" + std::to_string(i) + "|");
  }
  EXPECT_EQ(server.counters().open_connections, 200U);
  clients.clear();
  EXPECT_TRUE(wait_for([&] { return server.counters().open_connections == 0; }));
}

TEST(HttpServerTest, SaysWhyItCannotListen) {
  EchoHandler handler;
  HttpServer server({}, handler);
  HttpOptions options;
  options.port = server.port();
  EXPECT_NE(
      error_of([&] { HttpServer second(options, handler); }).find("cannot listen on 127.0.0.1:"),
      std::string::npos);
  options.host = "no such host";
  EXPECT_NE(error_of([&] { HttpServer third(options, handler); }).find("no address for host"),
            std::string::npos);
}

}  // namespace
}  // namespace spillway
