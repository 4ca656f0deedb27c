// SPDX-License-Identifier: Apache-2.0
// Sends thousands of requests that a seeded generator has damaged: each must be refused, answered
// or cut off, while other clients are served.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "serve/http/http_server.h"
#include "serve/http/test_bad_requests.h"
#include "serve/http/test_http_client.h"
#include "serve/http/test_http_handler.h"

namespace spillway {
namespace {

class Damage {
 public:
  explicit Damage(uint64_t seed) : random_(seed) {
    for (const BadRequest& bad : bad_requests()) seeds_.push_back(bad.text);
    seeds_.push_back(get("/v1/models?x=y", "Connection: keep-alive\r\nAccept: */*\r\n"));
    seeds_.push_back(post("/v1/chat/completions", R"({"model":"m","messages":[]})",
                          "Content-Type: application/json\r\n"));
    seeds_.push_back(
        "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
        "chunked\r\n\r\n3\r\nabc\r\n5;a=b\r\nhello\r\n0\r\nT: 1\r\n\r\n");
    seeds_.push_back(
        "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc");
    seeds_.push_back("OPTIONS * HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  }

  std::string next() {
    std::string text = pick(seeds_);
    const size_t times = below(4);
    for (size_t i = 0; i < times; ++i) change(text);
    return text;
  }

 private:
  size_t below(size_t end) { return end == 0 ? 0 : random_() % end; }
  const std::string& pick(const std::vector<std::string>& from) { return from[below(from.size())]; }

  void change(std::string& text) {
    static const std::vector<std::string> kWords = {"\r\n",
                                                    "\n",
                                                    "\r",
                                                    "\r\n\r\n",
                                                    " ",
                                                    "\t",
                                                    ":",
                                                    std::string(1, '\0'),
                                                    "\xff",
                                                    "%",
                                                    "%00",
                                                    ";",
                                                    ",",
                                                    "0",
                                                    "-1",
                                                    "ffffffffffffffff",
                                                    "18446744073709551616",
                                                    "Content-Length: 7\r\n",
                                                    "Content-Length: 0\r\n",
                                                    "Transfer-Encoding: chunked\r\n",
                                                    "Transfer-Encoding: x\r\n",
                                                    "Host: a\r\n",
                                                    " HTTP/1.1",
                                                    "HTTP/9.9",
                                                    "Expect: 100-continue\r\n",
                                                    "Connection: close\r\n",
                                                    "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
                                                    "0\r\n\r\n",
                                                    "\x16\x03\x01",
                                                    std::string(300, 'A'),
                                                    std::string(20'000, 'B')};
    const size_t at = below(text.size() + 1);
    switch (below(7)) {
      case 0:  // flips a bit
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:  // replaces a byte
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 2:
        text.erase(at, 1 + below(8));
        break;
      case 3:
        text.insert(at, pick(kWords));
        break;
      case 4:
        text.resize(at);
        break;
      case 5:  // repeats a part
        text.insert(at, text.substr(at, 1 + below(40)));
        break;
      case 6:  // joins the head of one request and the rest of another
      {
        const std::string& other = pick(seeds_);
        text = text.substr(0, at) + other.substr(below(other.size()));
      } break;
    }
  }

  std::mt19937_64 random_;
  std::vector<std::string> seeds_;
};

// Checks that `response` is one that the server may give to nonsense: the handler's, or an error.
void expect_sane(const TestResponse& response, const std::string& request) {
  if (response.status == 200 || response.status == 100) return;
  EXPECT_TRUE((response.status >= 400 && response.status < 418) || response.status == 431 ||
              response.status == 501 || response.status == 505)
      << response.status << "\n"
      << request;
  if (!response.is_whole || response.body.empty()) return;
  const auto body = nlohmann::json::parse(response.body, nullptr, false);
  EXPECT_TRUE(body.is_object() && body.contains("error") && body["error"]["message"].is_string())
      << response.body;
}

TEST(HttpHostileTest, DamagedRequestsHarmNoOther) {
  EchoHandler handler;
  HttpOptions options;
  options.linger_timeout = std::chrono::milliseconds(100);
  HttpServer server(options, handler);
  constexpr int kCases = 6000;
  // --gtest_shuffle changes the cases, --gtest_repeat runs more of them.
  Damage damage(20260704 + static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()));
  TestClient bystander(server.port());
  std::chrono::steady_clock::duration longest{};
  std::optional<TestClient> client;
  int connections = 0, answers = 0, refusals = 0;
  for (int i = 0; i < kCases; ++i) {
    if (!client) {
      client.emplace(server.port());
      ++connections;
    }
    ASSERT_TRUE(client->is_connected());
    const std::string request = damage.next();
    client->send(request);
    const bool goes_on = i % 2 == 0;
    if (!goes_on) client->close_own_direction();
    // A request that seems incomplete gets no answer.
    while (!goes_on || !client->is_quiet(std::chrono::milliseconds(1))) {
      const auto response = client->read_response();
      if (!response) break;
      expect_sane(*response, request);
      ++answers;
      refusals += response->status >= 400 ? 1 : 0;
    }
    if (!goes_on || client->has_ended()) client.reset();
    if (i % 20 == 0) {
      const auto start = std::chrono::steady_clock::now();
      const auto response = bystander.ask(get("/health"));
      longest = std::max(longest, std::chrono::steady_clock::now() - start);
      ASSERT_TRUE(response);
      EXPECT_EQ(response->body, "GET /health|");
    }
  }
  EXPECT_GT(refusals, kCases / 4);
  EXPECT_GT(connections, kCases / 4);
  EXPECT_LT(longest, std::chrono::seconds(5));
  client.reset();
  EXPECT_TRUE(wait_for([&] { return server.counters().open_connections == 1; }))
      << "only the bystander";
  RecordProperty("answers", answers);
}

}  // namespace
}  // namespace spillway
