// SPDX-License-Identifier: Apache-2.0
#include "text/json_field.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_json.h"

namespace spillway {
namespace {

std::vector<std::string> parse_merges(std::string_view text) {
  std::vector<std::string> merges;
  for (size_t line_number = 0; !text.empty(); ++line_number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 0 && line.starts_with("#version"))) continue;
    merges.emplace_back(line);
  }
  return merges;
}

bool has_text_at(const Vocabulary& vocabulary, size_t id, std::string_view text) {
  return id < vocabulary.tokens.size() && vocabulary.tokens[id].text == text;
}

void mark_control(Vocabulary& vocabulary, std::optional<TokenId> id) {
  if (id) vocabulary.tokens[static_cast<size_t>(*id)].kind = TokenKind::kControl;
}

}  // namespace

Vocabulary vocabulary_from_gpt2_files(std::string_view vocab_json, std::string_view merges_txt,
                                      std::string_view tokenizer_config_json,
                                      std::string_view where) {
  const std::string vocab_path = std::string(where) + "/vocab.json";
  const JsonDocument document(vocab_json, vocab_path);
  const JsonValue tokens = document.root();
  SPW_CHECK(tokens.is_object() && tokens.size() > 0, kInvalidArgument,
            "{} must be an object with tokens", vocab_path);
  Vocabulary vocabulary;
  tokens.for_each_member([&](std::string_view text, JsonValue id) {
    SPW_CHECK(id.is_integer(), kInvalidArgument, "{}: the id of a token must be an integer",
              vocab_path);
    token_slot(vocabulary, id.integer(), tokens.size(), vocab_path) = {.text = std::string(text)};
  });
  vocabulary.merges = parse_merges(merges_txt);

  TokenizerConfig config =
      parse_tokenizer_config(tokenizer_config_json, std::string(where) + "/tokenizer_config.json");
  if (!config.bos && !config.eos) {
    const bool opt = has_text_at(vocabulary, 1, "<pad>") && has_text_at(vocabulary, 2, "</s>");
    config.bos = config.eos = opt ? "</s>" : "<|endoftext|>";
    if (opt && !config.pad) config.pad = "<pad>";
    if (opt && !config.add_bos) config.add_bos = true;
  }
  vocabulary.add_space_prefix = config.add_prefix_space;
  apply_tokenizer_config(config, /*rules_known=*/false, vocabulary);
  mark_control(vocabulary, vocabulary.bos);
  mark_control(vocabulary, vocabulary.eos);
  mark_control(vocabulary, vocabulary.pad);
  if (config.unk) mark_control(vocabulary, try_find_token(vocabulary, *config.unk));
  return vocabulary;
}

}  // namespace spillway
