// SPDX-License-Identifier: Apache-2.0
#include "engine/vocabulary_from_files.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "engine/gguf_tokenizer_keys.h"
#include "text/tokenizer_json.h"

namespace spillway {
namespace {

std::optional<TokenId> try_token_id(const Metadata& m, const char* key, size_t tokens) {
  const auto id = m.try_int(key);
  // Some converters write 2^32 - 1 for "none".
  if (!id || *id < 0 || *id >= static_cast<int64_t>(tokens)) return std::nullopt;
  return static_cast<TokenId>(*id);
}

TokenKind kind_from_gguf(int64_t type, const std::string& source, size_t index) {
  switch (type) {
    case 0:
    case 1:
      return TokenKind::kNormal;
    case 2:
      return TokenKind::kUnknown;
    case 3:
      return TokenKind::kControl;
    case 4:
      return TokenKind::kUserDefined;
    case 5:
      return TokenKind::kUnused;
    case 6:
      return TokenKind::kByte;
    default:
      fail(ErrorCode::kInvalidArgument,
           "{}: tokenizer.ggml.token_type[{}] is {}, which is no known type", source, index, type);
  }
}

void read_gguf_tokens(const Metadata& m, Vocabulary& vocabulary) {
  const StringArray& texts = m.get_string_array("tokenizer.ggml.tokens");
  const auto scores = m.try_float_array("tokenizer.ggml.scores");
  const auto types = m.try_int_array("tokenizer.ggml.token_type");
  for (const auto& [name, size] : {std::pair{"scores", scores ? scores->size() : texts.size()},
                                   std::pair{"token_type", types ? types->size() : texts.size()}}) {
    SPW_CHECK(size == texts.size(), kInvalidArgument,
              "{}: tokenizer.ggml.{} has {} entries for {} tokens", m.source(), name, size,
              texts.size());
  }
  vocabulary.tokens.reserve(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    VocabToken token;
    token.text = texts[i];
    if (scores) token.score = (*scores)[i];
    if (types) token.kind = kind_from_gguf((*types)[i], m.source(), i);
    vocabulary.tokens.push_back(std::move(token));
  }
  if (const StringArray* merges = m.try_string_array("tokenizer.ggml.merges")) {
    for (const std::string_view merge : *merges) vocabulary.merges.emplace_back(merge);
  }
}

Vocabulary from_gguf(const Metadata& m) {
  const std::string& model = m.get_string("tokenizer.ggml.model");
  Vocabulary vocabulary;
  PreSplitTraits traits;
  if (model == "gpt2") {
    vocabulary.model = TokenizerModel::kByteLevelBpe;
    const std::string* name = m.try_string("tokenizer.ggml.pre");
    const auto pre_split = try_pre_split_from_gguf_name(name != nullptr ? *name : "default");
    SPW_CHECK(pre_split.has_value(), kUnsupported,
              "{}: tokenizer.ggml.pre '{}' is not a known way to split text", m.source(),
              printable(*name));
    vocabulary.pre_split = *pre_split;
    traits = pre_split_traits(*pre_split);
  } else {
    SPW_CHECK(model == "llama", kUnsupported,
              "{}: tokenizer.ggml.model '{}' is not supported; gpt2 and llama are", m.source(),
              printable(model));
    vocabulary.model = TokenizerModel::kSentencePiece;
    traits.add_bos = true;
  }
  read_gguf_tokens(m, vocabulary);
  const size_t count = vocabulary.tokens.size();
  vocabulary.bos = try_token_id(m, "tokenizer.ggml.bos_token_id", count);
  vocabulary.eos = try_token_id(m, "tokenizer.ggml.eos_token_id", count);
  vocabulary.eot = try_token_id(m, "tokenizer.ggml.eot_token_id", count);
  vocabulary.pad = try_token_id(m, "tokenizer.ggml.padding_token_id", count);
  vocabulary.add_bos =
      m.try_bool("tokenizer.ggml.add_bos_token").value_or(traits.add_bos) && vocabulary.bos;
  vocabulary.add_eos = m.try_bool("tokenizer.ggml.add_eos_token").value_or(false) && vocabulary.eos;
  const bool sentence_piece = vocabulary.model == TokenizerModel::kSentencePiece;
  // Byte-level files name an unknown token that their own tokenizer never emits (SmolLM2:
  // <|endoftext|>).
  if (sentence_piece) vocabulary.unk = try_token_id(m, "tokenizer.ggml.unknown_token_id", count);
  vocabulary.add_space_prefix =
      m.try_bool("tokenizer.ggml.add_space_prefix").value_or(sentence_piece);
  vocabulary.ignore_merges = traits.ignore_merges;
  vocabulary.normalize_nfc = traits.normalize_nfc;
  if (const std::string* text = m.try_string("tokenizer.chat_template"))
    vocabulary.chat_template = *text;
  read_own_tokenizer_keys(m, vocabulary);
  return vocabulary;
}

// generation_config.json may name several end tokens.
void add_generation_config(const Metadata& m, Vocabulary& vocabulary) {
  constexpr const char* kKey = "generation_config.eos_token_id";
  if (m.find(kKey) == nullptr) return;
  std::vector<int64_t> ids;
  if (std::holds_alternative<NumberArray>(*m.find(kKey))) {
    ids = m.get_int_array(kKey);
  } else {
    ids.push_back(m.get_int(kKey));
  }
  for (const int64_t id : ids) {
    if (id >= 0 && id < static_cast<int64_t>(vocabulary.tokens.size())) {
      vocabulary.end_of_generation.push_back(static_cast<TokenId>(id));
    }
  }
}

Vocabulary from_folder(const ModelFiles& files) {
  const std::string config = files.try_read_text("tokenizer_config.json").value_or("");
  Vocabulary vocabulary;
  if (const auto json = files.try_read_text("tokenizer.json")) {
    vocabulary = vocabulary_from_tokenizer_json(*json, config, files.name);
  } else {
    const auto vocab = files.try_read_text("vocab.json");
    const auto merges = files.try_read_text("merges.txt");
    SPW_CHECK(vocab && merges, kInvalidArgument,
              "{}: no tokenizer.json, nor vocab.json with merges.txt; put one there, or give ids "
              "with --ids",
              files.name);
    vocabulary = vocabulary_from_gpt2_files(*vocab, *merges, config, files.name);
  }
  if (vocabulary.chat_template.empty()) {
    vocabulary.chat_template = files.try_read_text("chat_template.jinja").value_or("");
  }
  add_generation_config(files.metadata, vocabulary);
  return vocabulary;
}

}  // namespace

Vocabulary vocabulary_from_files(const ModelFiles& files) {
  return files.format == ModelFiles::Format::kGguf ? from_gguf(files.metadata) : from_folder(files);
}

}  // namespace spillway
