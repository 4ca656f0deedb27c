// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer_config.json: the names of special tokens and the chat template.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace spillway {

struct TokenizerConfig {
  // Special tokens are given by their texts here.
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::optional<std::string> unk;
  std::optional<std::string> pad;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  bool add_prefix_space = false;
  std::string chat_template;  // if there are several, the one named "default"
};

// `json` may be empty. Throws Error(kInvalidArgument) that names the field; messages start with
// `where`.
TokenizerConfig parse_tokenizer_config(std::string_view json, std::string_view where);

// Makes room for `id` and returns its token. Throws Error(kInvalidArgument), naming `field`, for
// ids that are negative or too large to be plausible; `entries` is how many tokens the file has.
VocabToken& token_slot(Vocabulary& vocabulary, int64_t id, size_t entries, std::string_view field);

// Finds the first token with this text.
[[nodiscard]] std::optional<TokenId> try_find_token(const Vocabulary& vocabulary,
                                                    std::string_view text);

// Sets the chat template and those special ids that are not set yet and whose tokens exist. Also
// sets add_bos and add_eos, unless `rules_known` says that tokenizer.json has already set them.
void apply_tokenizer_config(const TokenizerConfig& config, bool rules_known,
                            Vocabulary& vocabulary);

}  // namespace spillway
