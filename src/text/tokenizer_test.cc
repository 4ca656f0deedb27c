// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/error.h"
#include "text/test_vocabulary.h"

namespace spillway {
namespace {

using Ids = std::vector<TokenId>;
constexpr EncodeOptions kTextOnly{.add_special = false};
constexpr EncodeOptions kParseSpecial{.add_special = false, .parse_special = true};

std::vector<std::string> spellings(const Tokenizer& tokenizer, const Ids& ids) {
  std::vector<std::string> result;
  for (TokenId id : ids) result.emplace_back(tokenizer.spelling(id));
  return result;
}

using testing::ElementsAre;

TEST(TokenizerTest, MergesTheBytesOfEachWordByRank) {
  const Tokenizer tokenizer(byte_vocabulary({"l o", "Ġ lo", "Ġlo w"}));
  EXPECT_THAT(spellings(tokenizer, tokenizer.encode("low low", kTextOnly)),
              ElementsAre("lo", "w", "Ġlow"));
  EXPECT_EQ(tokenizer.encode("", kTextOnly), Ids{});
}

TEST(TokenizerTest, TakesAWholeWordWithoutMergesWhenTheVocabularySaysSo) {
  Vocabulary vocabulary = byte_vocabulary({"l o"});
  const TokenId low = add_token(vocabulary, "low");
  EXPECT_EQ(Tokenizer(vocabulary).encode("low", kTextOnly).size(), 2U);
  vocabulary.ignore_merges = true;
  EXPECT_EQ(Tokenizer(vocabulary).encode("low", kTextOnly), Ids{low});
}

TEST(TokenizerTest, AddsBosAndEosWhereTheVocabularyAsksForThem) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.add_bos = true;
  vocabulary.add_eos = true;
  const Tokenizer tokenizer(vocabulary);
  EXPECT_EQ(tokenizer.encode("a"), (Ids{*vocabulary.bos, 'a', *vocabulary.eos}));
  EXPECT_EQ(tokenizer.encode("a", kTextOnly), Ids{'a'});
}

TEST(TokenizerTest, FindsControlTokensInTextOnlyWhenAsked) {
  const Tokenizer tokenizer(byte_vocabulary());
  EXPECT_EQ(tokenizer.encode("a<s>", kTextOnly).size(), 4U);
  EXPECT_EQ(tokenizer.encode("a<s>", kParseSpecial), (Ids{'a', *tokenizer.bos()}));
}

TEST(TokenizerTest, EncodesSegmentsAsOneTextButTrustsOnlyMarkers) {
  const Tokenizer tokenizer(byte_vocabulary({"a b"}));
  const std::vector<TextSegment> segments = {{"<s>a", true}, {"b<s>", false}, {"<s>", true}};
  EXPECT_THAT(spellings(tokenizer, tokenizer.encode_segments(segments, kTextOnly)),
              ElementsAre("<s>", "ab", "<", "s", ">", "<s>"));
}

TEST(TokenizerTest, EncodesBytesThatAreNotUtf8) {
  const Tokenizer tokenizer(byte_vocabulary());
  EXPECT_EQ(tokenizer.encode("a\xFF\xC3(\xE2\x82", kTextOnly),
            (Ids{'a', 0xFF, 0xC3, '(', 0xE2, 0x82}));
}

TEST(TokenizerTest, LeavesOutBytesThatTheVocabularyLacksOrSaysUnknown) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.tokens['b'].text = "other";
  EXPECT_EQ(Tokenizer(vocabulary).encode("abc", kTextOnly), (Ids{'a', 'c'}));
  vocabulary.unk = 0;
  EXPECT_EQ(Tokenizer(vocabulary).encode("abc", kTextOnly), (Ids{'a', 0, 'c'}));
}

TEST(TokenizerTest, NormalizesTextWhereTheVocabularyAsksForIt) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.normalize_nfc = true;
  EXPECT_EQ(Tokenizer(vocabulary).encode("e\u0301", kTextOnly), (Ids{0xC3, 0xA9}));
}

TEST(TokenizerTest, RunsTheSplitPatternsOfTheVocabulary) {
  Vocabulary vocabulary = byte_vocabulary({"a a"});
  vocabulary.pre_split = PreSplit::kCustom;
  vocabulary.split_stages = {{"a{3}"}};
  EXPECT_THAT(spellings(Tokenizer(vocabulary), Tokenizer(vocabulary).encode("aaaaa", kTextOnly)),
              ElementsAre("aa", "a", "aa"));
}

TEST(TokenizerTest, MergesPiecesByScore) {
  const Tokenizer tokenizer(piece_vocabulary({"▁l", "ow", "lo", "▁low", "▁", "l", "o", "w"}));
  EXPECT_THAT(spellings(tokenizer, tokenizer.encode("low low", kTextOnly)),
              ElementsAre("▁low", "▁low"));
  EXPECT_THAT(spellings(tokenizer, tokenizer.encode("lowlo", kTextOnly)),
              ElementsAre("▁low", "lo"));
}

TEST(TokenizerTest, MergesPiecesByRankWhenThereAreMerges) {
  Vocabulary vocabulary = piece_vocabulary({"▁", "a", "b", "ab", "▁a"});
  vocabulary.merges = {"▁ a", "a b"};
  const Tokenizer tokenizer(vocabulary);
  EXPECT_THAT(spellings(tokenizer, tokenizer.encode("abab", kTextOnly)),
              ElementsAre("▁a", "b", "ab"));
}

TEST(TokenizerTest, FallsBackToBytesForUnknownCharacters) {
  const Tokenizer tokenizer(piece_vocabulary({"▁", "a"}));
  EXPECT_THAT(spellings(tokenizer, tokenizer.encode("aé\xFF", kTextOnly)),
              ElementsAre("▁", "a", "<0xC3>", "<0xA9>", "<0xFF>"));
}

TEST(TokenizerTest, FusesUnknownCharactersWithoutByteTokens) {
  Vocabulary vocabulary = piece_vocabulary({"▁", "a"});
  for (VocabToken& token : vocabulary.tokens)
    if (token.kind == TokenKind::kByte) token.kind = TokenKind::kUnused;
  EXPECT_THAT(spellings(Tokenizer(vocabulary), Tokenizer(vocabulary).encode("aéüa", kTextOnly)),
              ElementsAre("▁", "a", "<unk>", "a"));
  vocabulary.fuse_unk = false;
  EXPECT_EQ(Tokenizer(vocabulary).encode("aéüa", kTextOnly).size(), 5U);
}

TEST(TokenizerTest, TakesUnusedPiecesApartAgain) {
  Vocabulary vocabulary = piece_vocabulary({"ab", "abc", "▁", "a", "b", "c"});
  vocabulary.add_space_prefix = false;
  vocabulary.tokens[static_cast<size_t>(*Tokenizer(vocabulary).try_find("ab"))].kind =
      TokenKind::kUnused;
  const Tokenizer tokenizer(vocabulary);
  EXPECT_THAT(spellings(tokenizer, tokenizer.encode("ababc", kTextOnly)),
              ElementsAre("a", "b", "abc"));
}

TEST(TokenizerTest, PutsASpaceBeforeTextAndAfterSpecialTokens) {
  Vocabulary vocabulary = piece_vocabulary({"▁", "a", "▁a"});
  const Tokenizer always(vocabulary);
  EXPECT_THAT(spellings(always, always.encode("a<s>a", kParseSpecial)),
              ElementsAre("▁a", "<s>", "▁a"));
  vocabulary.space_prefix_first_only = true;
  const Tokenizer first(vocabulary);
  EXPECT_THAT(spellings(first, first.encode("a<s>a", kParseSpecial)),
              ElementsAre("▁a", "<s>", "a"));
  vocabulary.space_prefix_unless_space = true;
  const Tokenizer unless(vocabulary);
  EXPECT_THAT(spellings(unless, unless.encode(" a", kTextOnly)), ElementsAre("▁a"));
}

TEST(TokenizerTest, KeepsPiecesThatReachOverSpaces) {
  const Tokenizer tokenizer(piece_vocabulary({"a▁b", "a▁", "▁", "a", "b"}));
  EXPECT_THAT(spellings(tokenizer, tokenizer.encode("a b", kTextOnly)), ElementsAre("▁", "a▁b"));
}

TEST(TokenizerTest, DecodesWithoutControlTokensUnlessAsked) {
  const Tokenizer tokenizer(byte_vocabulary({"Ġ a"}));
  const Ids ids = {*tokenizer.bos(), 'x', 256, *tokenizer.try_find("<tool>"), *tokenizer.eos()};
  EXPECT_EQ(tokenizer.decode(ids), "x a<tool>");
  EXPECT_EQ(tokenizer.decode(ids, {.keep_special = true}), "<s>x a<tool><|end|>");
  EXPECT_EQ(tokenizer.piece(*tokenizer.bos()), "");
  EXPECT_EQ(tokenizer.piece(256), " a");
}

TEST(TokenizerTest, RemovesTheSpaceThatEncodingAdded) {
  const Tokenizer tokenizer(piece_vocabulary({"▁", "a", "▁a"}));
  for (std::string_view text : {"a", " a", "a a", "é a", ""})
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a"), {.continues = true}), " a");
}

TEST(TokenizerTest, IgnoresIdsThatDoNotExist) {
  const Tokenizer tokenizer(byte_vocabulary());
  EXPECT_EQ(tokenizer.decode(Ids{-1, 'a', 1'000'000}), "a");
  EXPECT_EQ(tokenizer.piece(-1), "");
  EXPECT_FALSE(tokenizer.is_end_of_generation(-1));
}

TEST(TokenizerTest, KnowsTheTokensThatEndGeneration) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.eos = *vocabulary.bos;
  vocabulary.end_of_generation = {65};
  const TokenId plain = add_token(vocabulary, "<|im_end|>");
  const Tokenizer tokenizer(vocabulary);
  EXPECT_TRUE(tokenizer.is_end_of_generation(*vocabulary.eos));
  EXPECT_TRUE(tokenizer.is_end_of_generation(*tokenizer.try_find("<|end|>")));
  EXPECT_TRUE(tokenizer.is_end_of_generation(65));
  EXPECT_FALSE(tokenizer.is_end_of_generation(plain));
  EXPECT_EQ(tokenizer.end_of_generation().size(), 3U);
}

TEST(TokenizerTest, RefusesAnUnsoundVocabulary) {
  EXPECT_THROW(Tokenizer{Vocabulary{}}, Error);
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.merges = {"a nothing"};
  EXPECT_THROW(Tokenizer{vocabulary}, Error);
  vocabulary = byte_vocabulary();
  vocabulary.pre_split = PreSplit::kCustom;
  vocabulary.split_stages = {{"("}};
  EXPECT_THROW(Tokenizer{vocabulary}, Error);
}

TEST(TokenizerTest, NeverFailsOnRandomBytesAndVocabularies) {
  std::mt19937 random(7);
  const auto random_text = [&](size_t longest) {
    std::string text(random() % (longest + 1), 'x');
    for (char& c : text) c = "ab <s>\xE2\x96\x81\xFF\n"[random() % 11];
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    Vocabulary vocabulary = round % 2 == 0 ? byte_vocabulary() : piece_vocabulary({"▁", "a", "b"});
    for (int i = 0; i < 20; ++i)
      add_token(vocabulary, random_text(6), static_cast<TokenKind>(random() % 6),
                static_cast<float>(random() % 5));
    vocabulary.add_space_prefix = random() % 2 == 0;
    vocabulary.split_on_space = random() % 4 == 0;
    vocabulary.normalize_nfc = random() % 2 == 0;
    const Tokenizer tokenizer(vocabulary);
    for (int i = 0; i < 20; ++i) {
      const Ids ids = tokenizer.encode(random_text(40), {.parse_special = random() % 2 == 0});
      for (TokenId id : ids) ASSERT_LT(static_cast<size_t>(id), tokenizer.vocab_size());
      tokenizer.decode(ids, {.keep_special = true});
    }
  }
}

TEST(TokenizerTest, EncodesInManyThreadsAtOnce) {
  const Tokenizer tokenizer(byte_vocabulary({"l o", "Ġ lo", "Ġlo w"}));
  const std::string text = "low low 12 we'll\n\n go low";
  const Ids expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        if (tokenizer.encode(text) != expected) ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace spillway
