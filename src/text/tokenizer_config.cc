// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_config.h"

#include "base/log.h"
#include "base/printable.h"
#include "text/json_field.h"

namespace spillway {
namespace {

constexpr size_t kMaxIdGap = 65536;  // some ids may be missing, but not many

// A token is given by its text or by an object with the text in `content`.
std::optional<std::string> token_text(const JsonField& config, const char* key) {
  const auto field = config.try_member(key);
  if (!field) return std::nullopt;
  return std::string(field->is_string() ? field->string() : field->member("content").string());
}

std::optional<bool> optional_boolean(const JsonField& config, const char* key) {
  const auto field = config.try_member(key);
  return field ? std::optional(field->boolean()) : std::nullopt;
}

std::string chat_template_text(const JsonField& config) {
  const auto field = config.try_member("chat_template");
  if (!field) return {};
  if (!field->is_array()) return std::string(field->string());
  std::optional<std::string_view> text;
  field->for_each_element([&](const JsonField& entry) {
    if (!text && (field->size() == 1 || entry.member("name").string() == "default"))
      text = entry.member("template").string();
  });
  return std::string(text.value_or(""));
}

}  // namespace

TokenizerConfig parse_tokenizer_config(std::string_view json, std::string_view where) {
  if (json.empty()) return {};
  const JsonDocument document(json, std::string(where));
  const JsonField root(document.root(), std::string(where));
  TokenizerConfig config;
  config.bos = token_text(root, "bos_token");
  config.eos = token_text(root, "eos_token");
  config.unk = token_text(root, "unk_token");
  config.pad = token_text(root, "pad_token");
  config.add_bos = optional_boolean(root, "add_bos_token");
  config.add_eos = optional_boolean(root, "add_eos_token");
  config.add_prefix_space = root.boolean_or("add_prefix_space", false);
  config.chat_template = chat_template_text(root);
  return config;
}

VocabToken& token_slot(Vocabulary& vocabulary, int64_t id, size_t entries, std::string_view field) {
  SPW_CHECK(id >= 0 && static_cast<uint64_t>(id) < entries + kMaxIdGap, kInvalidArgument,
            "{}: the id {} does not fit a vocabulary of {} tokens", field, id, entries);
  const auto index = static_cast<size_t>(id);
  if (index >= vocabulary.tokens.size())
    vocabulary.tokens.resize(index + 1, {.text = {}, .kind = TokenKind::kUnused});
  return vocabulary.tokens[index];
}

std::optional<TokenId> try_find_token(const Vocabulary& vocabulary, std::string_view text) {
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id)
    if (vocabulary.tokens[id].text == text) return static_cast<TokenId>(id);
  return std::nullopt;
}

void apply_tokenizer_config(const TokenizerConfig& config, bool rules_known,
                            Vocabulary& vocabulary) {
  const auto resolve = [&](const std::optional<std::string>& text, std::optional<TokenId>& id) {
    if (!id && text) id = try_find_token(vocabulary, *text);
  };
  const auto resolve_or_warn = [&](const char* name, const std::optional<std::string>& text,
                                   std::optional<TokenId>& id) {
    resolve(text, id);
    if (id || !text || text->empty()) return;
    log_warning("tokenizer_config.json: {} '{}' is not in the vocabulary; it is left out", name,
                printable(*text));
  };
  resolve_or_warn("bos_token", config.bos, vocabulary.bos);
  resolve_or_warn("eos_token", config.eos, vocabulary.eos);
  resolve(config.pad, vocabulary.pad);
  vocabulary.chat_template = config.chat_template;
  if (rules_known) return;
  vocabulary.add_bos = config.add_bos.value_or(false) && vocabulary.bos;
  vocabulary.add_eos = config.add_eos.value_or(false) && vocabulary.eos;
}

}  // namespace spillway
