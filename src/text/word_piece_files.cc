// SPDX-License-Identifier: Apache-2.0
#include "text/word_piece_files.h"

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"
#include "text/json_field.h"

namespace spillway {
namespace {

constexpr size_t kMaxPieces = 4'000'000;

void expect_type(const JsonField& field, std::string_view wanted) {
  const std::string_view type = field.member("type").string();
  SPW_CHECK(type == wanted, kUnsupported,
            "{}.type is {}; an encoder's tokenizer must be BERT's, with {}", field.path(),
            printable(type), wanted);
}

TokenId id_of(const WordPieceVocabulary& vocabulary, std::string_view piece,
              const std::string& field) {
  const auto found = std::ranges::find(vocabulary.pieces, piece);
  SPW_CHECK(found != vocabulary.pieces.end(), kInvalidArgument,
            "{}: token {} is not in the vocabulary", field, printable(piece));
  return static_cast<TokenId>(found - vocabulary.pieces.begin());
}

void read_pieces(const JsonField& model, WordPieceVocabulary& vocabulary) {
  const JsonField vocab = model.member("vocab");
  SPW_CHECK(vocab.value().is_object(), kInvalidArgument, "{} must be an object from texts to ids",
            vocab.path());
  // Ids may have gaps for added tokens; larger gaps mean a broken file.
  const auto end = static_cast<int64_t>(std::min(2 * vocab.value().size() + 1000, kMaxPieces));
  vocab.value().for_each_member([&](std::string_view text, JsonValue value) {
    const int64_t id = value.is_integer() ? value.integer() : -1;
    SPW_CHECK(id >= 0 && id < end, kInvalidArgument, "{}: token '{}' has no id below {}",
              vocab.path(), printable(text), end);
    const auto index = static_cast<size_t>(id);
    if (vocabulary.pieces.size() <= index) vocabulary.pieces.resize(index + 1);
    SPW_CHECK(vocabulary.pieces[index].empty(), kInvalidArgument, "{}: id {} is there twice",
              vocab.path(), id);
    vocabulary.pieces[index] = text;
  });
}

BertWordRules read_rules(const JsonField& root) {
  const JsonField normalizer = root.member("normalizer");
  expect_type(normalizer, "BertNormalizer");
  expect_type(root.member("pre_tokenizer"), "BertPreTokenizer");
  const bool lowercase = normalizer.boolean_or("lowercase", true);
  return {.clean = normalizer.boolean_or("clean_text", true),
          .split_ideographs = normalizer.boolean_or("handle_chinese_chars", true),
          .strip_accents = normalizer.boolean_or("strip_accents", lowercase),
          .lowercase = lowercase};
}

// Reads the tokens that stand before and after a text.
void read_ends(const JsonField& root, WordPieceVocabulary& vocabulary) {
  const JsonField post = root.member("post_processor");
  const std::string_view type = post.member("type").string();
  if (type == "BertProcessing") {
    vocabulary.first = id_of(vocabulary, post.member("cls").element(0).string(), post.path());
    vocabulary.last = id_of(vocabulary, post.member("sep").element(0).string(), post.path());
    return;
  }
  expect_type(post, "TemplateProcessing");
  const JsonField single = post.member("single");
  SPW_CHECK(single.size() == 3, kUnsupported,
            "{} must be a token, the text and a token, as BERT has it", single.path());
  single.element(1).member("Sequence");
  const auto token_at = [&](size_t at) {
    const JsonField token = single.element(at).member("SpecialToken").member("id");
    return id_of(vocabulary, token.string(), token.path());
  };
  vocabulary.first = token_at(0);
  vocabulary.last = token_at(2);
}

}  // namespace

WordPieceVocabulary word_piece_from_tokenizer_json(std::string_view tokenizer_json,
                                                   std::string_view where) {
  const std::string path = std::string(where) + "/tokenizer.json";
  const JsonDocument document(tokenizer_json, path);
  const JsonField root(document.root(), path);
  const JsonField model = root.member("model");
  // Older files do not name their type; without merges they are taken for WordPiece.
  const bool is_unnamed = !model.try_member("type") && !model.try_member("merges");
  if (!is_unnamed) expect_type(model, "WordPiece");
  WordPieceVocabulary vocabulary;
  read_pieces(model, vocabulary);
  vocabulary.continuation = model.string_or("continuing_subword_prefix", "##");
  if (const auto longest = model.try_member("max_input_chars_per_word")) {
    SPW_CHECK(longest->integer() > 0, kInvalidArgument, "{} must be positive", longest->path());
    vocabulary.longest_word = static_cast<size_t>(longest->integer());
  }
  vocabulary.unknown =
      id_of(vocabulary, model.string_or("unk_token", "[UNK]"), model.path() + ".unk_token");
  vocabulary.words = read_rules(root);
  read_ends(root, vocabulary);
  return vocabulary;
}

WordPieceVocabulary word_piece_from_vocab_txt(std::string_view vocab_txt,
                                              std::string_view tokenizer_config_json,
                                              std::string_view where) {
  const std::string path = std::string(where) + "/vocab.txt";
  WordPieceVocabulary vocabulary;
  while (!vocab_txt.empty()) {
    const size_t end = std::min(vocab_txt.find('\n'), vocab_txt.size());
    std::string_view line = vocab_txt.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    vocabulary.pieces.emplace_back(line);
    SPW_CHECK(vocabulary.pieces.size() <= kMaxPieces, kInvalidArgument, "{} has more than {} lines",
              path, kMaxPieces);
    vocab_txt.remove_prefix(std::min(end + 1, vocab_txt.size()));
  }
  vocabulary.unknown = id_of(vocabulary, "[UNK]", path);
  vocabulary.first = id_of(vocabulary, "[CLS]", path);
  vocabulary.last = id_of(vocabulary, "[SEP]", path);
  if (tokenizer_config_json.empty()) return vocabulary;
  const std::string config_path = std::string(where) + "/tokenizer_config.json";
  const JsonDocument document(tokenizer_config_json, config_path);
  const JsonField config(document.root(), config_path);
  vocabulary.words.lowercase = config.boolean_or("do_lower_case", true);
  vocabulary.words.strip_accents = config.boolean_or("strip_accents", vocabulary.words.lowercase);
  vocabulary.words.split_ideographs = config.boolean_or("tokenize_chinese_chars", true);
  return vocabulary;
}

}  // namespace spillway
