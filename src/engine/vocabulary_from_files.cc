// SPDX-License-Identifier: Apache-2.0
#include "engine/vocabulary_from_files.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "engine/gguf_tokenizer_keys.h"
#include "text/tokenizer_json.h"

namespace spillway {
namespace {

// Some converters write -1, also as 32 bits without sign, for "none".
bool means_none(int64_t id) { return id < 0 || id == std::numeric_limits<uint32_t>::max(); }

bool is_token(int64_t id, size_t tokens) { return id >= 0 && id < static_cast<int64_t>(tokens); }

std::optional<TokenId> try_token_id(const Metadata& m, const char* key, size_t tokens) {
  const auto id = m.try_int(key);
  if (!id || !is_token(*id, tokens)) return std::nullopt;
  return static_cast<TokenId>(*id);
}

// Warns only, since everything else of the model can be used, and files with a wrong id are common.
void warn_about_stray_id(const Metadata& m, const char* key, int64_t id, size_t tokens) {
  log_warning("{}: {} is {}, but there are {} tokens; it is left out", m.source(), key, id, tokens);
}

// Does what try_token_id() does, and warns if the id is not that of a token.
std::optional<TokenId> try_sound_token_id(const Metadata& m, const char* key, size_t tokens) {
  const auto id = m.try_int(key);
  if (id && !means_none(*id) && !is_token(*id, tokens)) warn_about_stray_id(m, key, *id, tokens);
  return try_token_id(m, key, tokens);
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
  vocabulary.bos = try_sound_token_id(m, "tokenizer.ggml.bos_token_id", count);
  vocabulary.eos = try_sound_token_id(m, "tokenizer.ggml.eos_token_id", count);
  vocabulary.eot = try_sound_token_id(m, "tokenizer.ggml.eot_token_id", count);
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

// Returns the ids under a key that has one or several of them, and warns about those that are no
// tokens.
std::vector<TokenId> token_ids_of(const Metadata& m, const char* key, size_t tokens) {
  const Value* value = m.find(key);
  if (value == nullptr) return {};
  const bool several = std::holds_alternative<NumberArray>(*value);
  std::vector<TokenId> ids;
  for (const int64_t id : several ? m.get_int_array(key) : std::vector<int64_t>{m.get_int(key)}) {
    if (is_token(id, tokens))
      ids.push_back(static_cast<TokenId>(id));
    else if (!means_none(id))
      warn_about_stray_id(m, key, id, tokens);
  }
  return ids;
}

// Adds the tokens that end an answer besides the tokenizer's EOS. The reference implementation uses
// generation_config.json; config.json is what it was made from, and all there is in many folders.
void add_end_tokens(const Metadata& m, Vocabulary& vocabulary) {
  for (const char* key : {"eos_token_id", "generation_config.eos_token_id"}) {
    for (const TokenId id : token_ids_of(m, key, vocabulary.tokens.size()))
      vocabulary.end_of_generation.push_back(id);
  }
  // The tokenizer decides what a text begins with; this only warns about a wrong id.
  token_ids_of(m, "bos_token_id", vocabulary.tokens.size());
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
  add_end_tokens(files.metadata, vocabulary);
  return vocabulary;
}

}  // namespace

Vocabulary vocabulary_from_files(const ModelFiles& files) {
  return files.format == ModelFiles::Format::kGguf ? from_gguf(files.metadata) : from_folder(files);
}

}  // namespace spillway
