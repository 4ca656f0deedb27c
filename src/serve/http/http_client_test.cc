// SPDX-License-Identifier: Apache-2.0
#include "serve/http/http_client.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "serve/http/test_socket_server.h"

namespace spillway {
namespace {

using std::chrono::milliseconds;

constexpr HttpClientLimits kLimits = {.connect_timeout = milliseconds(5'000),
                                      .silence_timeout = milliseconds(10'000),
                                      .most_head_bytes = 4096,
                                      .most_chunk_bytes = 10'000};
const std::atomic<bool> kNeverCancelled{false};

struct Result {
  int status = 0;
  std::string body;
  std::string error;  // "": no error
  ErrorCode code = ErrorCode::kInternal;
};

Result ask(const HttpUrl& url, const HttpClientLimits& limits = kLimits,
           const std::atomic<bool>& cancel = kNeverCancelled) {
  Result result;
  try {
    HttpResponse response = HttpClient(url, cancel, limits).get("/x", {});
    result.status = response.status();
    while (response.read_some(result.body)) {
    }
  } catch (const Error& error) {
    result.error = error.what();
    result.code = error.code();
  }
  return result;
}

// Returns the client's result for an answer of these bytes, sent `piece` bytes at a time.
Result ask_for(const std::string& bytes, size_t piece = std::string::npos) {
  TestSocketServer server([&](TestConnection& connection) {
    connection.read_until("\r\n\r\n");
    for (size_t at = 0; at < bytes.size(); at += std::min(piece, bytes.size())) {
      if (!connection.send(std::string_view(bytes).substr(at, piece))) return;
    }
  });
  return ask(server.url());
}

void expect_body(const std::string& answer, std::string_view body, int status = 200) {
  for (const size_t piece : {std::string::npos, size_t{1}, size_t{3}}) {
    const Result result = ask_for(answer, piece);
    EXPECT_EQ(result.error, "") << answer;
    EXPECT_EQ(result.status, status) << answer;
    EXPECT_EQ(result.body, body) << answer;
  }
}

void expect_error(const std::string& answer, std::string_view why) {
  const Result result = ask_for(answer);
  EXPECT_EQ(result.code, ErrorCode::kIo) << answer.substr(0, 200);
  EXPECT_NE(result.error.find(why), std::string::npos)
      << answer.substr(0, 200) << "\n: " << result.error;
}

TEST(HttpClientTest, SendsWhatAServerExpects) {
  std::string head, body;
  TestSocketServer server([&](TestConnection& connection) {
    head = connection.read_until("\r\n\r\n");
    body = connection.read_until("}");
    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
    EXPECT_TRUE(connection.is_closed_by_peer());
  });
  HttpUrl url = server.url();
  url.path = "/v1";
  EXPECT_EQ(HttpClient(url, kNeverCancelled, kLimits)
                .post("/chat", {{"Authorization", "Bearer k"}}, "{\"a\":1}")
                .read_up_to(100),
            "{}");
  EXPECT_EQ(head, "POST /v1/chat HTTP/1.1\r\nHost: " + url.authority() +
                      "\r\nConnection: close\r\nAuthorization: Bearer k\r\nContent-Type: "
                      "application/json\r\nContent-Length: 7\r\n\r\n");
  EXPECT_EQ(body, "{\"a\":1}");
}

TEST(HttpClientTest, ReadsABodyHoweverItsLengthIsTold) {
  expect_body("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello");
  expect_body("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more", "hello");
  expect_body("HTTP/1.0 404 Not Found\r\n\r\nhello", "hello", 404);
  expect_body("HTTP/1.1 200\r\nX: y\r\n\r\n", "");
  expect_body("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", "", 204);
  expect_body("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", "x");
}

TEST(HttpClientTest, ReadsChunks) {
  const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n";
  expect_body(head + "5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n", "hello world");
  expect_body(head + "0\r\nX: y\r\n\r\n", "");
}

TEST(HttpClientTest, ALongAnswerInChunksHasNoLimit) {
  std::string answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", body;
  for (int i = 0; i < 100'000; ++i) answer += "1\r\nx\r\n";
  const Result result = ask_for(answer + "0\r\n\r\n");
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(result.body, std::string(100'000, 'x'));
}

TEST(HttpClientTest, BrokenChunksAreErrors) {
  const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  expect_error(head + "x\r\n", "no hexadecimal number");
  expect_error(head + "-1\r\n", "no hexadecimal number");
  expect_error(head + "\r\n", "has no size");
  expect_error(head + "2\r\nhello\r\n", "longer than its size");
  expect_error(head + "9\r\nhello\r\n0\r\n\r\n", "");
  expect_error(head + "ffffffffffffffffff\r\n", "too many digits");
  expect_error(head + "fffffff\r\n", "more than 10000 bytes");
  expect_error(head + "1;" + std::string(10'000, 'x'), "extensions");
  expect_error(head + "0\r\n" + std::string(100'000, 'x'), "");
  expect_error("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "not known");
}

TEST(HttpClientTest, AnAnswerThatBreaksOffIsAnError) {
  for (const char* answer :
       {"H", "HTTP/1.1 200 OK\r\nContent-Len", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"})
    expect_error(answer, "in the middle");
  expect_error("", "without an answer");
}

TEST(HttpClientTest, WhatIsNoHttpIsAnError) {
  for (const char* answer :
       {"hello\r\n\r\n", "\r\n\r\n", "HTTP/2 200 OK\r\n\r\n", "HTTP/1.1 abc OK\r\n\r\n",
        "HTTP/1.1 99 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n"})
    expect_error(answer, "no HTTP");
}

TEST(HttpClientTest, HeadsWithoutEndAreCutOff) {
  TestSocketServer server([](TestConnection& connection) {
    connection.send("HTTP/1.1 200 OK\r\n");
    while (connection.send("X-More: and more and more and more\r\n")) {
    }
  });
  EXPECT_NE(ask(server.url()).error.find("head"), std::string::npos);
  TestSocketServer line([](TestConnection& connection) {
    while (connection.send(std::string(1000, 'x'))) {
    }
  });
  EXPECT_NE(ask(line.url()).error.find("head"), std::string::npos);
  TestSocketServer informs([](TestConnection& connection) {
    while (connection.send("HTTP/1.1 100 Continue\r\n\r\n")) {
    }
  });
  EXPECT_NE(ask(informs.url()).error.find("head"), std::string::npos);
}

TEST(HttpClientTest, ARefusalIsReadWhileTheRequestIsStillSent) {
  TestSocketServer server([](TestConnection& connection) {
    connection.read_until("\r\n\r\n");
    connection.send("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig");
    EXPECT_TRUE(connection.is_closed_by_peer());
  });
  HttpResponse response =
      HttpClient(server.url(), kNeverCancelled, kLimits).post("/x", {}, std::string(64 << 20, 'x'));
  EXPECT_EQ(response.status(), 413);
  EXPECT_EQ(response.read_up_to(100), "big");
}

TEST(HttpClientTest, ASilentServerIsLeft) {
  HttpClientLimits limits = kLimits;
  limits.silence_timeout = milliseconds(50);
  TestSocketServer server([](TestConnection& connection) { connection.is_closed_by_peer(); });
  const Result result = ask(server.url(), limits);
  EXPECT_EQ(result.code, ErrorCode::kIo);
  EXPECT_NE(result.error.find("said nothing"), std::string::npos) << result.error;
}

TEST(HttpClientTest, AnInterruptEndsTheWaitAndTheConnection) {
  std::atomic<bool> cancel{false}, was_closed{false};
  {
    TestSocketServer server([&](TestConnection& connection) {
      connection.read_until("\r\n\r\n");
      connection.send("HTTP/1.1 200 OK\r\n\r\nsome");
      std::this_thread::sleep_for(milliseconds(20));
      cancel = true;
      was_closed = connection.is_closed_by_peer();
    });
    const Result result = ask(server.url(), kLimits, cancel);
    EXPECT_EQ(result.code, ErrorCode::kCancelled);
    EXPECT_EQ(result.body, "some");
  }
  EXPECT_TRUE(was_closed);
}

TEST(HttpClientTest, AnUnreachableServerIsNamedByItsAddress) {
  HttpUrl url;
  {
    TestSocketServer server([](TestConnection&) {});
    url = server.url();
  }
  const Result result = ask(url);
  EXPECT_EQ(result.code, ErrorCode::kIo);
  EXPECT_NE(result.error.find(url.authority()), std::string::npos) << result.error;
  url.host = "no.such.host.invalid";
  EXPECT_NE(ask(url).error.find("no.such.host.invalid"), std::string::npos);
}

}  // namespace
}  // namespace spillway
