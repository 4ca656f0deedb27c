// SPDX-License-Identifier: Apache-2.0
#include "text/nfc.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(NfcTest, ComposesLettersAndMarks) {
  EXPECT_EQ(to_nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(to_nfc("a\u0323\u0302"), "\u1EAD");
  EXPECT_EQ(to_nfc("Cu\u031B\u0309a Vie\u0323\u0302t"), "C\u1EEDa Vi\u1EC7t");
}

TEST(NfcTest, OrdersMarksByTheirClass) {
  EXPECT_EQ(to_nfc("a\u0302\u0323"), "\u1EAD");
  EXPECT_EQ(to_nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(to_nfc("q\u0301\u0300"), "q\u0301\u0300");
}

TEST(NfcTest, KeepsAMarkThatIsBlocked) {
  EXPECT_EQ(to_nfc("a\u0305\u0301"), "a\u0305\u0301");
  EXPECT_EQ(to_nfc("\u0B47\u0300\u0B3E"), "\u0B47\u0300\u0B3E");
}

TEST(NfcTest, ReplacesSingletonsAndLeavesExclusionsApart) {
  EXPECT_EQ(to_nfc("\u212B"), "\u00C5");
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093C");
  EXPECT_EQ(to_nfc("\uF900"), "\u8C48");
}

TEST(NfcTest, ComposesHangul) {
  EXPECT_EQ(to_nfc("\u1112\u1161\u11AB"), "\uD55C");
  EXPECT_EQ(to_nfc("\uD558\u11AB"), "\uD55C");
  EXPECT_EQ(to_nfc("\uD55C\u11AB"), "\uD55C\u11AB");
}

TEST(NfcTest, LeavesPlainTextAndInvalidBytesAlone) {
  EXPECT_EQ(to_nfc(""), "");
  EXPECT_EQ(to_nfc("plain é \xFF"), "plain é \xFF");
  EXPECT_EQ(to_nfc("e\xFF\u0301"), "e\xFF\u0301");
  EXPECT_EQ(to_nfc("我\xF0\x9F"), "我\xF0\x9F");
}

TEST(NfcTest, IsFastOnAMillionMarks) {
  std::string text = "a";
  for (int i = 0; i < 500'000; ++i) text += "\u0301\u0316";
  const std::string normalized = to_nfc(text);
  EXPECT_TRUE(normalized.starts_with("\u00E1\u0316\u0316"));
  EXPECT_EQ(normalized.size(), text.size() - 1);
}

TEST(NfcTest, FormDTakesLettersAndMarksApart) {
  EXPECT_EQ(to_nfd("\u1EAD"), "a\u0323\u0302");
  EXPECT_EQ(to_nfd("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(to_nfd("\uD55C"), "\u1112\u1161\u11AB");
  EXPECT_EQ(to_nfd("\u00E9 \xFF"), "e\u0301 \xFF");
}

}  // namespace
}  // namespace spillway
