// SPDX-License-Identifier: Apache-2.0
#include "serve/http/key_ring.h"

#include <gtest/gtest.h>

#include "serve/test_folder.h"

namespace spillway {
namespace {

TEST(KeyRingTest, ComparesWholeTexts) {
  const std::string longest(kMostKeyBytes, 'k');
  const std::vector<std::string> texts = {"",
                                          "a",
                                          "b",
                                          "ab",
                                          "ba",
                                          "abc",
                                          std::string("a\0", 2),
                                          std::string("a\0b", 3),
                                          longest,
                                          longest.substr(1),
                                          longest.substr(1) + "x",
                                          "x" + longest.substr(1)};
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t j = 0; j < texts.size(); ++j)
      EXPECT_EQ(equal_in_constant_time(texts[i], texts[j]), i == j) << i << " " << j;
  }
  EXPECT_FALSE(equal_in_constant_time(longest + "more", longest));
  EXPECT_FALSE(equal_in_constant_time(longest + "more", longest + "more")) << "no key is so long";
  for (size_t i = 0; i < kMostKeyBytes; ++i) {
    std::string other = longest;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_FALSE(equal_in_constant_time(other, longest)) << i;
  }
}

TEST(KeyRingTest, AcceptsItsKeysAndNoOthers) {
  const KeyRing keys({"first-key", "second", std::string(kMostKeyBytes, 'k')});
  EXPECT_EQ(keys.size(), 3U);
  EXPECT_TRUE(keys.try_find("Bearer first-key"));
  EXPECT_TRUE(keys.try_find("bearer second"));
  EXPECT_TRUE(keys.try_find("BEARER   second"));
  EXPECT_TRUE(keys.try_find("Bearer " + std::string(kMostKeyBytes, 'k')));
  for (const std::string& wrong : std::vector<std::string>{
           "", "Bearer", "Bearer ", "second", "Bearer secon", "Bearer second2", "Bearer Second",
           "Basic second", "Bearersecond", "Bearer second, first-key",
           "Bearer " + std::string(kMostKeyBytes + 1, 'k'), " Bearer second"})
    EXPECT_FALSE(keys.try_find(wrong)) << wrong;
  EXPECT_FALSE(KeyRing({}).try_find("Bearer "));
}

TEST(KeyRingTest, ReadsAFile) {
  const TestFolder folder;
  const auto path =
      folder.write("keys", "# ours\n\nsk-one\n  sk-two\t\r\n   # indented\nsk-#three");
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  testing::internal::CaptureStderr();
  const KeyRing keys = KeyRing::from_file(path);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(keys.size(), 3U);
  for (const char* key : {"Bearer sk-one", "Bearer sk-two", "Bearer sk-#three"})
    EXPECT_TRUE(keys.try_find(key));
  EXPECT_FALSE(keys.try_find("Bearer # ours"));
}

TEST(KeyRingTest, WarnsWhenOthersMayReadTheFile) {
  const TestFolder folder;
  const auto path = folder.write("keys", "sk-hidden\n");
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  testing::internal::CaptureStderr();
  EXPECT_EQ(KeyRing::from_file(path).size(), 1U);
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("others may read"), std::string::npos) << warning;
  EXPECT_EQ(warning.find("sk-hidden"), std::string::npos);
}

TEST(KeyRingTest, RefusesFilesWithoutShowingTheirContents) {
  const TestFolder folder;
  EXPECT_NE(error_of([&] { KeyRing::from_file(folder / "missing"); }).find("cannot read"),
            std::string::npos);
  EXPECT_NE(
      error_of([&] { KeyRing::from_file(folder.write("empty", "# none\n\n")); }).find("no API key"),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              KeyRing::from_file(folder.write("large", std::string(2 << 20, 'k')));
            }).find("too large"),
            std::string::npos);
  for (const std::string& line : std::vector<std::string>{
           "se cret", "secr\xc3\xa9t", "secret\x01", "secret" + std::string(kMostKeyBytes, 'x')}) {
    const std::string error =
        error_of([&] { KeyRing::from_file(folder.write("bad", "ok\n" + line)); });
    EXPECT_NE(error.find("line 2 of"), std::string::npos) << error;
    EXPECT_EQ(error.find("sec"), std::string::npos) << error;
  }
  EXPECT_EQ(error_of([] {
              KeyRing({"ok", "se cret"});
            }),
            "API key 2 is not 1 to 256 visible ASCII characters");
}

TEST(KeyRingTest, KnowsWhoShowsAKeyHoweverItIsWritten) {
  const KeyRing keys({"one", "two"});
  EXPECT_EQ(keys.try_find("Bearer two"), 1U);
  EXPECT_EQ(keys.try_find("bearer   two "), 1U);
  EXPECT_EQ(keys.try_find("Bearer one"), 0U);
  EXPECT_EQ(keys.try_find("Bearer three"), std::nullopt);
  EXPECT_EQ(keys.try_find("two"), std::nullopt);
}

TEST(KeyRingTest, FindsAKeyInTheHeadersOfOtherApis) {
  const KeyRing keys({"one", "two"});
  const auto found = [&](std::vector<HttpHeader> headers) {
    HttpRequest request;
    request.headers = std::move(headers);
    return keys.try_find(request);
  };
  EXPECT_EQ(found({{"authorization", "Bearer two"}}), 1U);
  EXPECT_EQ(found({{"x-api-key", "two"}}), 1U);
  EXPECT_EQ(found({{"api-key", "one"}}), 0U);
  EXPECT_EQ(found({{"authorization", "Bearer -"}, {"x-api-key", "two"}}), 1U);
  EXPECT_EQ(found({{"authorization", "Bearer one"}, {"x-api-key", "wrong"}}), 0U);
  EXPECT_EQ(found({}), std::nullopt);
  EXPECT_EQ(found({{"x-api-key", ""}, {"api-key", "Bearer one"}}), std::nullopt);
  EXPECT_EQ(found({{"authorization", "one"}}), std::nullopt);
}

}  // namespace
}  // namespace spillway
