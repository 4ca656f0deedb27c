// SPDX-License-Identifier: Apache-2.0
// Passages whose last word is to be guessed, as in LAMBADA (FlexGen, table 5).
#pragma once

#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace spillway {

struct Passage {
  std::vector<TokenId> context;    // begins with BOS where the vocabulary asks for it
  std::vector<TokenId> last_word;  // with the space before it, wherever the tokenizer puts that
};

// The tokens of `text` up to its last space, and those of what follows. They are the tokens of the
// whole text, cut where those of the text without its last word end or begin to differ: a tokenizer
// that joins the word with what stands before it has it guessed together with that. Throws
// kInvalidArgument where there is no last word behind a space.
Passage split_last_word(const Tokenizer& tokenizer, std::string_view text);

}  // namespace spillway
