// SPDX-License-Identifier: Apache-2.0
#include "engine/last_word.h"

#include <algorithm>

#include "base/error.h"

namespace spillway {

Passage split_last_word(const Tokenizer& tokenizer, std::string_view text) {
  const size_t space = text.find_last_of(' ');
  SPW_CHECK(space != std::string_view::npos && space > 0 && space + 1 < text.size(),
            kInvalidArgument, "the text has no last word behind a space");
  // No EOS: it would be taken for a part of the word.
  constexpr EncodeOptions kTextOnly{.add_special = false};
  const auto before = tokenizer.encode(text.substr(0, space), kTextOnly);
  const auto whole = tokenizer.encode(text, kTextOnly);
  const auto cut = std::mismatch(before.begin(), before.end(), whole.begin(), whole.end()).second;
  Passage passage;
  if (tokenizer.vocabulary().add_bos && tokenizer.bos())
    passage.context.push_back(*tokenizer.bos());
  passage.context.insert(passage.context.end(), whole.begin(), cut);
  passage.last_word.assign(cut, whole.end());
  SPW_CHECK(!passage.context.empty() && !passage.last_word.empty(), kInvalidArgument,
            "the tokenizer does not tell the last word from the text before it");
  return passage;
}

}  // namespace spillway
