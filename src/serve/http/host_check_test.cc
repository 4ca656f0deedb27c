// SPDX-License-Identifier: Apache-2.0
#include "serve/http/host_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/test_scoped_folder.h"

namespace spillway {
namespace {

using testing::HasSubstr;

HttpRequest request_of(const std::string& host, const std::string& origin = "") {
  HttpRequest request;
  request.headers.push_back({"host", host});
  if (!origin.empty()) request.headers.push_back({"origin", origin});
  return request;
}

// Returns status and body of a refusal; "ok" if the request may go on.
std::string told(const HostCheck& check, const HttpRequest& request) {
  const auto answer = check.try_refuse(request);
  return answer ? std::to_string(answer->status) + " " + answer->body : "ok";
}

TEST(HostCheckTest, NamesOfThisMachineAreGood) {
  const HostCheck check({}, {});
  for (const char* const host :
       {"localhost", "LocalHost:8080", "localhost.", "127.0.0.1", "127.0.0.1:1", "[::1]",
        "[::1]:65535", "192.168.1.5:8080", "0.0.0.0:8080"})
    EXPECT_EQ(told(check, request_of(host)), "ok") << host;
  EXPECT_EQ(told(check, HttpRequest()), "ok") << "HTTP/1.0 has none";
}

TEST(HostCheckTest, OtherNamesAreRefusedInOneLine) {
  const HostCheck check({"llm.example"}, {});
  for (const char* const host :
       {"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example",
        "xlocalhost", "", "[::1", "[::1]x", "localhost:80x", "127.1", "2130706433"}) {
    const std::string answer = told(check, request_of(host));
    EXPECT_THAT(answer, HasSubstr("403 ")) << host;
    EXPECT_THAT(answer, HasSubstr("--allowed-hosts")) << host;
    EXPECT_EQ(answer.find('\n'), std::string::npos) << host;
  }
  EXPECT_THAT(told(check, request_of("evil.example:80")), HasSubstr("'evil.example'"));
  EXPECT_EQ(told(check, request_of("LLM.example:443")), "ok");
  EXPECT_EQ(told(HostCheck({"*"}, {}), request_of("evil.example", "http://evil.example")), "ok");
}

TEST(HostCheckTest, PagesOfThisServerMayCall) {
  const HostCheck check({"llm.example"}, {"https://chat.example"});
  const std::pair<const char*, const char*> good[] = {
      {"localhost:8080", "http://localhost:8080"}, {"[::1]:8080", "http://[::1]:8080"},
      {"127.0.0.1", "http://127.0.0.1"},           {"127.0.0.1:80", "http://127.0.0.1"},
      {"llm.example", "https://llm.example"},      {"127.0.0.1:8080", "https://llm.example"},
      {"127.0.0.1:8080", "https://chat.example"}};
  for (const auto& [host, origin] : good)
    EXPECT_EQ(told(check, request_of(host, origin)), "ok") << origin;
}

TEST(HostCheckTest, PagesOfOthersMayNot) {
  const HostCheck check({"llm.example"}, {"https://chat.example"});
  for (const char* const origin :
       {"http://evil.example", "http://localhost:3000", "http://127.0.0.1:8081", "null",
        "http://localhost:8080.evil.example", "https://chat.example.evil", "file://", "x"}) {
    const std::string answer = told(check, request_of("localhost:8080", origin));
    EXPECT_THAT(answer, HasSubstr("403 ")) << origin;
    EXPECT_THAT(answer, HasSubstr("--cors")) << origin;
  }
  EXPECT_EQ(told(HostCheck({}, {"*"}), request_of("localhost", "http://evil.example")), "ok");
}

TEST(HostCheckTest, RefusesNamesThatAreNone) {
  EXPECT_EQ(told(HostCheck({"a.example, b.example"}, {}), request_of("b.example")), "ok");
  for (const char* const name : {"", "a,", "a b", "http://a", "a/b", "a@b", "a:x"})
    EXPECT_THAT(error_of([&] { HostCheck({name}, {}); }), HasSubstr("is no host")) << name;
}

}  // namespace
}  // namespace spillway
