// SPDX-License-Identifier: Apache-2.0
// Splits passages whose last word a model is to predict, as in LAMBADA (FlexGen, table 5).
#pragma once

#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace spillway {

struct Passage {
  std::vector<TokenId> context;    // begins with BOS where the vocabulary asks for it
  std::vector<TokenId> last_word;  // with the space before it, wherever the tokenizer puts that
};

// Splits the tokens of `text` before its last word. The tokens of the whole text are split where
// they begin to differ from those of the text up to its last space, or where these end: if a
// tokenizer joins the word with text before it, the model has to predict both. Throws
// kInvalidArgument if there is no last word after a space.
Passage split_last_word(const Tokenizer& tokenizer, std::string_view text);

}  // namespace spillway
