// SPDX-License-Identifier: Apache-2.0
#include "serve/http/request_parser.h"

#include <gtest/gtest.h>

#include "serve/api_error.h"
#include "serve/http/test_bad_requests.h"

namespace spillway {
namespace {

using Stage = RequestParser::Stage;

// Returns all requests in `text`, fed `step` bytes at a time.
std::vector<std::shared_ptr<HttpRequest>> parse(const std::string& text, size_t step = 1 << 20,
                                                const HttpOptions& options = {}) {
  RequestParser parser(options);
  std::vector<std::shared_ptr<HttpRequest>> requests;
  for (size_t start = 0; start < text.size(); start += step) {
    std::string_view piece = std::string_view(text).substr(start, step);
    while (!piece.empty()) {
      piece.remove_prefix(parser.feed(piece));
      if (parser.stage() == Stage::kHeadDone) parser.begin_body();
      if (parser.stage() == Stage::kDone) requests.push_back(parser.take());
    }
  }
  EXPECT_EQ(parser.stage(), Stage::kNothing);
  return requests;
}

int status_of(const std::string& text, size_t step = 1 << 20, const HttpOptions& options = {}) {
  try {
    parse(text, step, options);
  } catch (const ApiError& error) {
    return error.status();
  }
  return 200;
}

TEST(RequestParserTest, ReadsRequestsHoweverTheyAreCut) {
  const std::string text =
      "POST /v1/chat%20x/%2Fy?a=b&c HTTP/1.1\r\nHost: h:80\r\nX-Empty:\r\nX-Two: \t a b \t\r\n"
      "CONTENT-LENGTH: 5\r\n\r\nhello"
      "\r\nGET http://h/abs?q HTTP/1.1\r\nHost: h\r\n\r\n"
      "PUT / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
      "5;ext=1\r\nhello\r\n00006\r\n world\r\n0\r\nX-Trailer: 1\r\nY: 2\r\n\r\n"
      "OPTIONS * HTTP/1.0\r\n\r\n";
  for (size_t step = 1; step <= text.size(); ++step) {
    const auto requests = parse(text, step);
    ASSERT_EQ(requests.size(), 4U);
    const HttpRequest& first = *requests[0];
    EXPECT_EQ(first.method, HttpMethod::kPost);
    EXPECT_EQ(first.path, "/v1/chat x/%2Fy");
    EXPECT_EQ(first.query, "a=b&c");
    EXPECT_EQ(first.body, "hello");
    EXPECT_EQ(first.header("x-two"), "a b");
    EXPECT_EQ(first.header("x-empty"), "");
    EXPECT_EQ(first.header("x-none"), "");
    EXPECT_EQ(first.headers.size(), 4U);
    EXPECT_EQ(requests[1]->path, "/abs");
    EXPECT_EQ(requests[1]->query, "q");
    EXPECT_EQ(requests[2]->body, "hello world");
    EXPECT_EQ(requests[3]->path, "*");
  }
}

TEST(RequestParserTest, RefusesWhatCouldBeUnderstoodDifferently) {
  EXPECT_GE(bad_requests().size(), 60U);
  for (const BadRequest& bad : bad_requests()) {
    for (const size_t step : {1, 2, 3, 7, 1 << 20})
      EXPECT_EQ(status_of(bad.text, step), bad.status) << bad.why << ", in pieces of " << step;
  }
}

TEST(RequestParserTest, HasLimits) {
  HttpOptions options;
  options.most_head_bytes = 1000;
  options.most_headers = 5;
  options.most_target_bytes = 100;
  options.most_body_bytes = 50;
  options.most_chunks = 3;
  options.most_chunk_extension_bytes = 10;
  const auto status = [&](const std::string& text) { return status_of(text, 1 << 20, options); };
  const std::string host = "Host: h\r\n";
  const auto headers = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "X: y\r\n";
    return text;
  };
  EXPECT_EQ(status("GET / HTTP/1.1\r\n" + host + headers(4) + "\r\n"), 200);
  EXPECT_EQ(status("GET / HTTP/1.1\r\n" + host + headers(5) + "\r\n"), 431);
  EXPECT_EQ(status("GET / HTTP/1.1\r\n" + host + "X: " + std::string(940, 'x') + "\r\n\r\n"), 200);
  EXPECT_EQ(status("GET / HTTP/1.1\r\n" + host + "X: " + std::string(1000, 'x')), 431);
  EXPECT_EQ(status("GET /" + std::string(99, 'x') + " HTTP/1.1\r\n" + host + "\r\n"), 200);
  EXPECT_EQ(status("GET /" + std::string(100, 'x') + " HTTP/1.1\r\n" + host + "\r\n"), 414);
  EXPECT_EQ(status("GET /" + std::string(300, 'x')), 414);
  EXPECT_EQ(status(std::string(2000, 'G')), 414);
  const auto with_length = [&](const std::string& length) {
    return status("POST / HTTP/1.1\r\n" + host + "Content-Length: " + length + "\r\n\r\n" +
                  std::string(50, 'x'));
  };
  EXPECT_EQ(with_length("50"), 200);
  EXPECT_EQ(with_length("0000000000000000000000000050"), 200);
  EXPECT_EQ(with_length("51"), 413);
  EXPECT_EQ(with_length("18446744073709551615"), 413);
  EXPECT_EQ(with_length("18446744073709551616"), 413);
  EXPECT_EQ(with_length("99999999999999999999999999999999999999"), 413);
  const auto chunked = [&](const std::string& body) {
    return status("POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n" + body);
  };
  const std::string one = "1\r\nx\r\n";
  EXPECT_EQ(chunked(one + one + one + "0\r\n\r\n"), 200);
  EXPECT_EQ(chunked(one + one + one + one + "0\r\n\r\n"), 413);
  EXPECT_EQ(chunked("32\r\n" + std::string(50, 'x') + "\r\n0\r\n\r\n"), 200);
  EXPECT_EQ(chunked("33\r\n"), 413);
  EXPECT_EQ(chunked("1\r\nx\r\n32\r\n"), 413);
  EXPECT_EQ(chunked("fffffffffffffff\r\n"), 413);
  EXPECT_EQ(chunked("1;12345\r\nx\r\n1;1234\r\nx\r\n0\r\n\r\n"), 200);
  EXPECT_EQ(chunked("1;12345\r\nx\r\n1;123456\r\n"), 400);
  EXPECT_EQ(chunked("0\r\nX: " + std::string(1100, 'x')), 431);
}

TEST(RequestParserTest, AnnouncedBytesCostNothing) {
  HttpOptions options;
  options.most_body_bytes = size_t{1} << 40;
  RequestParser parser(options);
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000000\r\n\r\n";
  EXPECT_EQ(parser.feed(head), head.size());
  parser.begin_body();
  EXPECT_EQ(parser.feed("abc"), 3U);
  EXPECT_EQ(parser.stage(), Stage::kBody);
  EXPECT_LT(parser.body_bytes(), 1000U);
}

}  // namespace
}  // namespace spillway
