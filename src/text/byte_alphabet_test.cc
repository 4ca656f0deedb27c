// SPDX-License-Identifier: Apache-2.0
#include "text/byte_alphabet.h"

#include <gtest/gtest.h>

#include <set>

namespace spillway {
namespace {

TEST(ByteAlphabetTest, GivesEveryByteALetterOfItsOwn) {
  std::set<std::string> letters;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string letter(byte_letter(static_cast<uint8_t>(byte)));
    letters.insert(letter);
    EXPECT_EQ(try_spelled_bytes(letter), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(letters.size(), 256U);
}

TEST(ByteAlphabetTest, SpellsAsGpt2Does) {
  EXPECT_EQ(spell_bytes(" a\n"), "ĠaĊ");
  EXPECT_EQ(spell_bytes("é"), "Ã©");
  EXPECT_EQ(spell_bytes("\xAD"), "Ń");
}

TEST(ByteAlphabetTest, KnowsWhatIsNotALetter) {
  EXPECT_EQ(try_spelled_bytes("a b"), std::nullopt);
  EXPECT_EQ(try_spelled_bytes("我"), std::nullopt);
  EXPECT_EQ(try_spelled_bytes("\xFF"), std::nullopt);
  EXPECT_EQ(try_spelled_bytes("\u0144"), std::nullopt);
}

}  // namespace
}  // namespace spillway
