// SPDX-License-Identifier: Apache-2.0
// Limits on what clients may send and for how long: sizes, timeouts, and request smuggling.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/test_scoped_folder.h"
#include "serve/http/http_server.h"
#include "serve/http/test_bad_requests.h"
#include "serve/http/test_http_client.h"
#include "serve/http/test_http_handler.h"

namespace spillway {
namespace {

using std::chrono::milliseconds;

// Expects an error in the form that OpenAI's clients expect.
void expect_error(const std::optional<TestResponse>& response, int status,
                  const std::string& what) {
  ASSERT_TRUE(response) << what;
  EXPECT_EQ(response->status, status) << what;
  EXPECT_TRUE(response->is_whole) << what;
  EXPECT_EQ(response->headers.at("content-type"), "application/json") << what;
  const auto body = nlohmann::json::parse(response->body, nullptr, false);
  ASSERT_TRUE(body.is_object()) << what;
  EXPECT_TRUE(body["error"]["message"].is_string()) << what;
  EXPECT_TRUE(body["error"]["type"].is_string()) << what;
  EXPECT_TRUE(body["error"]["code"].is_string()) << what;
  EXPECT_TRUE(body["error"].contains("param")) << what;
}

TEST(HttpLimitsTest, AnswersBadRequestsOnceAndCloses) {
  EchoHandler handler;
  HttpServer server({}, handler);
  for (const BadRequest& bad : bad_requests()) {
    TestClient client(server.port());
    // The second request would be answered if the server trusted the bad one's end.
    client.send(bad.text + get("/smuggled"));
    const auto response = client.read_response();
    expect_error(response, bad.status, bad.why);
    EXPECT_EQ(response->headers.at("connection"), "close") << bad.why;
    EXPECT_FALSE(client.read_response()) << bad.why;
    EXPECT_TRUE(client.is_closed_by_peer()) << bad.why;
  }
  EXPECT_EQ(server.counters().requests, 0U);
  EXPECT_TRUE(wait_for([&] { return server.counters().open_connections == 0; }));
}

TEST(HttpLimitsTest, AnswersLargeRequestsWhileTheyAreStillSent) {
  EchoHandler handler;
  HttpOptions options;
  options.most_body_bytes = 1000;
  HttpServer server(options, handler);
  const std::string host = " / HTTP/1.1\r\nHost: h\r\n";
  const std::pair<std::string, int> cases[] = {
      {post("/", std::string(2 << 20, 'x')), 413},
      {"POST" + host + "Transfer-Encoding: chunked\r\n\r\n200000\r\n" + std::string(2 << 20, 'x'),
       413},
      {"GET" + host + "X: " + std::string(2 << 20, 'x'), 431},
      {"GET /" + std::string(1 << 20, 'x'), 414},
  };
  for (const auto& [request, status] : cases) {
    TestClient client(server.port());
    client.send(request);
    expect_error(client.read_response(), status, request.substr(0, 30));
  }
  TestClient client(server.port());
  EXPECT_EQ(client.ask(post("/", std::string(1000, 'x')))->status, 200);
}

TEST(HttpLimitsTest, EndsEndlessRequests) {
  EchoHandler handler;
  HttpServer server({}, handler);
  const std::string host = " / HTTP/1.1\r\nHost: h\r\n";
  const std::pair<std::string, std::string> cases[] = {
      {"GET" + host, "X: y\r\n"},
      {"GET" + host + "X: ", "y"},
      {"GET /", "x"},
      {"", "G"},
      {"POST" + host + "Transfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"},
      {"POST" + host + "Transfer-Encoding: chunked\r\n\r\n1;", "x"},
      {"POST" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n", "X: y\r\n"},
  };
  for (const auto& [start, endless] : cases) {
    TestClient client(server.port());
    client.send(start);
    std::string block;
    while (block.size() < 64 << 10) block += endless;
    bool is_taken = true;
    for (int i = 0; i < 1000 && is_taken && client.is_quiet(milliseconds(0)); ++i)
      is_taken = client.send(block);
    const auto response = client.read_response();
    ASSERT_TRUE(response) << start << endless;
    EXPECT_GE(response->status, 400);
    EXPECT_LT(response->status, 500);
  }
}

TEST(HttpLimitsTest, HoldsOnlySoManyBodiesAtOnce) {
  HoldingHandler handler;
  HttpOptions options;
  options.most_body_bytes = 200'000;
  options.most_bodies_bytes = 500'000;
  HttpServer server(options, handler);
  const std::string request = post("/", std::string(200'000, 'b'));
  TestClient first(server.port()), second(server.port());
  first.send(request);
  HeldRequest held = handler.next();
  second.send(request);
  const auto refused = second.read_response();
  expect_error(refused, 503, "the second");
  EXPECT_TRUE(refused->headers.contains("retry-after"));
  // A body that the handler has dropped counts no more, however long the answer takes.
  held.request.reset();
  TestClient third(server.port());
  third.send(request);
  handler.next().reply->send({200, "text/plain", "there is room again", {}});
  EXPECT_EQ(third.read_response()->status, 200);
  held.reply->send({200, "text/plain", "done", {}});
  EXPECT_EQ(first.read_response()->body, "done");
}

TEST(HttpLimitsTest, WhatBodiesMayHoldChangesWhileItRuns) {
  HoldingHandler handler;
  HttpOptions options;
  options.most_body_bytes = 200'000;
  HttpServer server(options, handler);
  const std::string request = post("/", std::string(200'000, 'b'));
  TestClient first(server.port()), second(server.port());
  server.limit_bodies(500'000);
  first.send(request);
  HeldRequest held = handler.next();
  second.send(request);
  expect_error(second.read_response(), 503, "beyond the new limit");
  server.limit_bodies(10'000'000);
  TestClient third(server.port());
  third.send(request);
  handler.next().reply->send({200, "text/plain", "there is room", {}});
  EXPECT_EQ(third.read_response()->body, "there is room");
  held.reply->send({200, "text/plain", "done", {}});
  EXPECT_EQ(first.read_response()->body, "done");
}

TEST(HttpLimitsTest, ARequestMayOutliveItsServer) {
  HoldingHandler handler;
  HeldRequest held;
  {
    HttpServer server({}, handler);
    TestClient client(server.port());
    client.send(post("/", "body"));
    held = handler.next();
    ASSERT_NE(held.request, nullptr);
  }
  EXPECT_EQ(held.request->body, "body");
}

// Returns clients that have received an answer and stay connected.
std::vector<TestClient> answered_clients(const HttpServer& server, int count) {
  std::vector<TestClient> clients;
  for (int i = 0; i < count; ++i) {
    clients.emplace_back(server.port());
    EXPECT_EQ(clients.back().ask(get("/"))->status, 200);
  }
  return clients;
}

TEST(HttpLimitsTest, TellsThoseWhoAreOneTooMany) {
  EchoHandler handler;
  HttpOptions options;
  options.most_connections = 4;
  HttpServer server(options, handler);
  std::vector<TestClient> clients = answered_clients(server, 4);
  for (int i = 0; i < 20; ++i) {
    TestClient late(server.port());
    const auto response = late.ask(get("/"));
    expect_error(response, 503, "one too many");
    EXPECT_TRUE(response->headers.contains("retry-after"));
    EXPECT_TRUE(late.is_closed_by_peer());
  }
  EXPECT_EQ(server.counters().refused_connections, 20U);
  EXPECT_EQ(clients[0].ask(get("/"))->status, 200) << "the others are not disturbed";
  clients.pop_back();
  EXPECT_TRUE(wait_for([&] { return server.counters().open_connections < 4; }));
  EXPECT_EQ(TestClient(server.port()).ask(get("/"))->status, 200);
}

// Treats "/health" as a health check, as a router does.
class ProbedHandler : public EchoHandler {
 public:
  bool is_probe(const HttpRequest& head) const override { return head.path == "/health"; }
};

TEST(HttpLimitsTest, ProbesAreAnsweredHoweverManyThereAre) {
  ProbedHandler handler;
  HttpOptions options;
  options.most_connections = 3;
  HttpServer server(options, handler);
  std::vector<TestClient> clients = answered_clients(server, 3);
  // Opens far more silent connections than the server reads at a time.
  std::vector<TestClient> silent;
  for (int i = 0; i < 200; ++i) silent.emplace_back(server.port());
  const auto healthy = TestClient(server.port()).ask(get("/health"));
  ASSERT_TRUE(healthy);
  EXPECT_EQ(healthy->status, 200);
  EXPECT_EQ(healthy->headers.at("connection"), "close");
  expect_error(TestClient(server.port()).ask(get("/other")), 503, "no probe");
  for (TestClient& client : silent) {
    const auto response = client.read_response();
    ASSERT_TRUE(response) << "also who says nothing is told";
    EXPECT_EQ(response->status, 503);
  }
  EXPECT_EQ(clients[0].ask(get("/"))->status, 200);
}

TEST(HttpLimitsTest, OneAddressHasOnlySoManyConnections) {
  ProbedHandler handler;
  HttpOptions options;
  options.most_client_connections = 2;
  HttpServer server(options, handler);
  std::vector<TestClient> clients = answered_clients(server, 2);
  const auto refused = TestClient(server.port()).ask(get("/"));
  expect_error(refused, 503, "the third");
  EXPECT_NE(refused->body.find("this address has 2 connections"), std::string::npos);
  EXPECT_EQ(TestClient(server.port()).ask(get("/health"))->status, 200);
  clients.pop_back();
  EXPECT_TRUE(wait_for([&] { return TestClient(server.port()).ask(get("/"))->status == 200; }));
}

TEST(HttpLimitsTest, AnswersAreReadableByClientsThatSendAllOfALargeBodyFirst) {
  EchoHandler handler;
  HttpOptions options;
  options.most_body_bytes = 1 << 20;
  HttpServer server(options, handler);
  TestClient client(server.port());
  // The body exceeds the system's buffers, so the server must read what it does not want.
  EXPECT_TRUE(client.send(post("/", std::string(40 << 20, 'x'))));
  expect_error(client.read_response(), 413, "a large body");
  EXPECT_TRUE(client.is_closed_by_peer());
  options.most_lingered_bytes = 1 << 20;
  HttpServer strict(options, handler);
  TestClient endless(strict.port());
  EXPECT_FALSE(endless.send(post("/", std::string(200 << 20, 'x')))) << "not for ever";
}

TEST(HttpLimitsTest, FiveHundredAtOnceGetAnAnswerOrAnEnd) {
  EchoHandler handler;
  HttpOptions options;
  options.most_connections = 20;
  HttpServer server(options, handler);
  std::vector<TestClient> clients;
  for (int i = 0; i < 500; ++i) clients.emplace_back(server.port());
  for (TestClient& client : clients) client.send(get("/"));
  int answered = 0;
  for (TestClient& client : clients) {
    const auto response = client.read_response();
    if (response && response->status == 200) ++answered;
    if (response && response->status != 200) {
      EXPECT_EQ(response->status, 503);
    }
  }
  EXPECT_EQ(answered, 20);
}

TEST(HttpLimitsTest, WaitsOnlySoLong) {
  EchoHandler handler;
  HttpOptions options;
  options.head_timeout = milliseconds(150);
  options.body_timeout = milliseconds(150);
  options.idle_timeout = milliseconds(150);
  HttpServer server(options, handler);
  TestClient silent(server.port()), in_head(server.port()), in_body(server.port()),
      in_chunks(server.port()), idle(server.port());
  in_head.send("GET / HTTP/1.1\r\nHost:");
  in_body.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabc");
  in_chunks.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc");
  EXPECT_EQ(idle.ask(get("/"))->status, 200);
  expect_error(in_head.read_response(), 408, "head");
  expect_error(in_body.read_response(), 408, "body");
  expect_error(in_chunks.read_response(), 408, "chunks");
  EXPECT_FALSE(silent.read_response());
  EXPECT_TRUE(silent.is_closed_by_peer());
  EXPECT_FALSE(idle.read_response());
  EXPECT_TRUE(idle.is_closed_by_peer());
}

TEST(HttpLimitsTest, DripsDoNotExtendTheTime) {
  EchoHandler handler;
  HttpOptions options;
  options.head_timeout = milliseconds(200);
  HttpServer server(options, handler);
  TestClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: h\r\nX: ");
  const auto start = std::chrono::steady_clock::now();
  while (client.is_quiet(milliseconds(10)) &&
         std::chrono::steady_clock::now() - start < std::chrono::seconds(20))
    client.send("x");
  expect_error(client.read_response(), 408, "drips");
}

TEST(HttpLimitsTest, AnAnswerMayTakeLongerThanARequest) {
  HoldingHandler handler;
  HttpOptions options;
  options.head_timeout = options.body_timeout = options.idle_timeout = milliseconds(100);
  HttpServer server(options, handler);
  TestClient client(server.port());
  client.send(get("/"));
  const HeldRequest held = handler.next();
  EXPECT_TRUE(client.is_quiet(milliseconds(400)));
  held.reply->send({200, "text/plain", "late", {}});
  EXPECT_EQ(client.read_response()->body, "late");
}

TEST(HttpLimitsTest, WaitsForDescriptorsWhenThereAreNone) {
  EchoHandler handler;
  HttpServer server({}, handler);
  TestClient first(server.port());
  EXPECT_EQ(first.ask(get("/"))->status, 200);
  // Logs once beforehand, since UBSan opens a pipe to look at an object that it has not seen
  // before.
  log_warning("no descriptors for a moment");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  // Leaves one descriptor for the next client, and none for the server's end of it.
  const int lowest = ::dup(0);
  ::close(lowest);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(lowest) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  TestClient second(server.port());
  second.send(get("/"));
  EXPECT_TRUE(second.is_quiet(milliseconds(50)));
  EXPECT_EQ(first.ask(get("/"))->status, 200) << "those who are in are served";
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  const auto response = second.read_response();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
}

TEST(HttpLimitsTest, ABlankLineBehindARequestIsNothing) {
  EchoHandler handler;
  HttpOptions options;
  options.head_timeout = milliseconds(100);
  HttpServer server(options, handler);
  TestClient client(server.port());
  EXPECT_EQ(client.ask(post("/", "x") + "\r\n")->status, 200);
  EXPECT_FALSE(client.read_response()) << "no complaint that a request is late";
}

TEST(HttpLimitsTest, RefusesOptionsWithoutSense) {
  EchoHandler handler;
  const auto error = [&](auto change) {
    HttpOptions options;
    change(options);
    return error_of([&] { HttpServer server(options, handler); });
  };
  EXPECT_EQ(error([](HttpOptions& o) { o.io_threads = 0; }), "0 I/O threads; 1 to 64 make sense");
  EXPECT_NE(error([](HttpOptions& o) { o.most_connections = 0; }), "no error");
  EXPECT_NE(error([](HttpOptions& o) { o.most_head_bytes = 1; }), "no error");
  EXPECT_NE(error([](HttpOptions& o) { o.cors_origins = {"chat.example"}; }), "no error");
}

}  // namespace
}  // namespace spillway
