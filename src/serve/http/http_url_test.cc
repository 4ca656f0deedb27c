// SPDX-License-Identifier: Apache-2.0
#include "serve/http/http_url.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace spillway {
namespace {

void expect(std::string_view text, std::string_view authority, std::string_view path) {
  const HttpUrl url = parse_http_url(text, "--server");
  EXPECT_EQ(url.authority(), authority) << text;
  EXPECT_EQ(url.path, path) << text;
}

std::string refusal(std::string_view text) {
  try {
    parse_http_url(text, "--server");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
    return error.what();
  }
  return "";
}

TEST(HttpUrlTest, HasHostPortAndPath) {
  expect("http://127.0.0.1:8080", "127.0.0.1:8080", "");
  expect("http://localhost", "localhost:80", "");
  expect("HTTP://My-Host.example:1/", "My-Host.example:1", "");
  expect("http://h:65535/v1", "h:65535", "/v1");
  expect("http://h/a/b//", "h:80", "/a/b");
  expect("http://[::1]:8080/v1/", "[::1]:8080", "/v1");
  EXPECT_EQ(parse_http_url("http://[::1]", "--server").host, "::1");
}

TEST(HttpUrlTest, HostAndPortAloneWillDo) {
  expect("localhost:8080", "localhost:8080", "");
  expect("10.0.0.1:1/v1/", "10.0.0.1:1", "/v1");
  expect("[::1]:8080", "[::1]:8080", "");
  expect(":8080", "127.0.0.1:8080", "");
  expect(":8080/v1", "127.0.0.1:8080", "/v1");
}

TEST(HttpUrlTest, WhatIsNoneIsRefusedWithAWordOnWhatToGive) {
  for (const char* text : {"",
                           "h",
                           ":",
                           ":x",
                           ":0",
                           "h:",
                           "h/v1",
                           "h:8080?x",
                           "user:secret@h",
                           "ftp://h",
                           "http://",
                           "http:///v1",
                           "http://:8080",
                           "http://h:",
                           "http://h:0",
                           "http://h:65536",
                           "http://h:-1",
                           "http://h:80x",
                           "http://h:8 0",
                           "http://user:secret@h",
                           "http://h/v1?key=x",
                           "http://h/#a",
                           "http://h?x",
                           "http://[::1",
                           "http://[]",
                           "http://[g]",
                           "http://[::1]8",
                           "http://a b",
                           "http://h/a b",
                           "http://h\r\nX:",
                           "http://h/\r\nX: y",
                           "http://h/\x7f",
                           "http://\xc3\xa9"}) {
    const std::string said = refusal(text);
    EXPECT_NE(said.find("--server is '"), std::string::npos) << text;
    EXPECT_NE(said.find("give http://HOST:PORT"), std::string::npos) << text;
    EXPECT_EQ(said.find('\n'), std::string::npos) << text;
  }
  EXPECT_NE(refusal("http://" + std::string(5000, 'a')), "");
}

TEST(HttpUrlTest, HttpsIsTheJobOfAProxy) {
  EXPECT_NE(refusal("https://h").find("proxy"), std::string::npos);
  EXPECT_NE(refusal("HTTPS://h:8080/v1").find("TLS"), std::string::npos);
}

TEST(HttpUrlTest, KnowsThisMachine) {
  for (const char* text : {"http://localhost", "http://127.0.0.1:1", "http://[::1]:1"})
    EXPECT_TRUE(parse_http_url(text, "").is_this_machine()) << text;
  for (const char* text : {"http://10.0.0.1", "http://localhost.example", "http://[::2]"})
    EXPECT_FALSE(parse_http_url(text, "").is_this_machine()) << text;
}

}  // namespace
}  // namespace spillway
