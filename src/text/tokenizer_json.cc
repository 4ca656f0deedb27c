// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_json.h"

#include <unordered_map>

#include "base/printable.h"
#include "text/json_field.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_pipeline.h"

namespace spillway {
namespace {

using Ids = std::unordered_map<std::string_view, TokenId>;

// Reads the tokens of the model itself. The keys of the result refer to the document.
Ids read_tokens(const JsonField& model, size_t entries, Vocabulary& vocabulary) {
  const JsonField vocab = model.member("vocab");
  SPW_CHECK(vocab.value().is_object(), kUnsupported, "{} must be an object from texts to ids",
            vocab.path());
  const bool byte_fallback = model.boolean_or("byte_fallback", false);
  Ids ids;
  ids.reserve(entries);
  vocab.value().for_each_member([&](std::string_view text, JsonValue id) {
    SPW_CHECK(id.is_integer(), kInvalidArgument, "{}: the id of a token must be an integer",
              vocab.path());
    const bool byte = byte_fallback && try_parse_byte_token(text).has_value();
    token_slot(vocabulary, id.integer(), entries, vocab.path()) = {
        .text = std::string(text), .kind = byte ? TokenKind::kByte : TokenKind::kNormal};
    const bool is_new = ids.emplace(text, static_cast<TokenId>(id.integer())).second;
    SPW_CHECK(is_new, kInvalidArgument, "{}: token '{}' is there twice", vocab.path(),
              printable(text));
  });
  return ids;
}

void read_merges(const JsonField& model, Vocabulary& vocabulary) {
  const JsonField merges = model.member("merges");
  const size_t count = merges.size();
  vocabulary.merges.reserve(count);
  merges.value().for_each_element([&](JsonValue merge) {
    if (merge.is_string()) {
      vocabulary.merges.emplace_back(merge.string());
      return;
    }
    SPW_CHECK(merge.is_array() && merge.size() == 2 && merge.element(0).is_string() &&
                  merge.element(1).is_string(),
              kInvalidArgument, "{}[{}] must be a string or two strings", merges.path(),
              vocabulary.merges.size());
    std::string joined(merge.element(0).string());
    joined.append(" ").append(merge.element(1).string());
    // Spaces have been replaced by other characters when merges apply, so a merge with a space in
    // one of its sides never applies and is left out.
    if (try_split_merge(joined)) vocabulary.merges.push_back(std::move(joined));
  });
}

void read_added_tokens(const JsonField& root, const Ids& ids, size_t entries,
                       Vocabulary& vocabulary) {
  const auto added = root.try_member("added_tokens");
  if (!added) return;
  added->for_each_element([&](const JsonField& entry) {
    const std::string_view text = entry.member("content").string();
    if (text.empty()) return;
    const auto known = ids.find(text);
    const int64_t id = known != ids.end() ? known->second : entry.member("id").integer();
    const bool special = entry.boolean_or("special", false);
    VocabToken& token = token_slot(vocabulary, id, entries, entry.path());
    token = {.text = std::string(text),
             .kind = special ? TokenKind::kControl : TokenKind::kUserDefined,
             .lstrip = entry.boolean_or("lstrip", false),
             .rstrip = entry.boolean_or("rstrip", false),
             .single_word = entry.boolean_or("single_word", false)};
    if (special && vocabulary.unk == static_cast<TokenId>(id)) token.kind = TokenKind::kUnknown;
  });
}

void read_model(const JsonField& model, Vocabulary& vocabulary) {
  const std::string type = model.string_or("type", "BPE");
  SPW_CHECK(type == "BPE", kUnsupported, "{}.type is {}; only BPE is supported", model.path(),
            printable(type));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    SPW_CHECK(model.string_or(key, "").empty(), kUnsupported, "{}.{} is not supported",
              model.path(), key);
  }
  vocabulary.fuse_unk = model.boolean_or("fuse_unk", false);
  vocabulary.ignore_merges = model.boolean_or("ignore_merges", false);
}

}  // namespace

Vocabulary vocabulary_from_tokenizer_json(std::string_view tokenizer_json,
                                          std::string_view tokenizer_config_json,
                                          std::string_view where) {
  const std::string path = std::string(where) + "/tokenizer.json";
  const TokenizerConfig config =
      parse_tokenizer_config(tokenizer_config_json, std::string(where) + "/tokenizer_config.json");
  const JsonDocument document(tokenizer_json, path);
  const JsonField root(document.root(), path);
  const JsonField model = root.member("model");

  Vocabulary vocabulary;
  read_model(model, vocabulary);
  const auto added = root.try_member("added_tokens");
  const size_t entries = model.member("vocab").value().size() + (added ? added->size() : 0);
  const Ids ids = read_tokens(model, entries, vocabulary);
  if (const auto unk = model.try_member("unk_token")) {
    const auto found = ids.find(unk->string());
    SPW_CHECK(found != ids.end(), kInvalidArgument, "{} is not in the vocabulary", unk->path());
    vocabulary.unk = found->second;
  }
  read_merges(model, vocabulary);
  read_added_tokens(root, ids, entries, vocabulary);
  read_pipeline(root, vocabulary);
  const bool rules_known = read_post_processor(root, vocabulary);
  apply_tokenizer_config(config, rules_known, vocabulary);
  validate(vocabulary);
  return vocabulary;
}

}  // namespace spillway
