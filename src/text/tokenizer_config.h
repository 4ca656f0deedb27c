// SPDX-License-Identifier: Apache-2.0
// What tokenizer_config.json adds to the vocabulary: names of special tokens, the chat template.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace spillway {

struct TokenizerConfig {
  // Token texts.
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::optional<std::string> unk;
  std::optional<std::string> pad;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  bool add_prefix_space = false;
  std::string chat_template;  // of several the one named "default"
};

// `json` may be empty. Throws Error(kInvalidArgument) naming the field; messages start with
// `where`.
TokenizerConfig parse_tokenizer_config(std::string_view json, std::string_view where);

// Makes room for `id` and returns its token. Throws Error(kInvalidArgument), naming `field`, for
// ids that are negative or so large that the file cannot mean them; `entries` is how many tokens
// the file has.
VocabToken& token_slot(Vocabulary& vocabulary, int64_t id, size_t entries, std::string_view field);

// The id of the first token with this text.
[[nodiscard]] std::optional<TokenId> try_find_token(const Vocabulary& vocabulary,
                                                    std::string_view text);

// Sets the special ids that are still open, for the tokens that exist, and the template. add_bos
// and add_eos are set where the configuration has them, unless `rules_known`: tokenizer.json has
// said what to add.
void apply_tokenizer_config(const TokenizerConfig& config, bool rules_known,
                            Vocabulary& vocabulary);

}  // namespace spillway
