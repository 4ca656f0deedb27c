// SPDX-License-Identifier: Apache-2.0
// Text to words as BERT's tokenizers cut it: white space, punctuation and ideographs are borders.
#pragma once

#include <functional>
#include <string_view>

namespace spillway {

struct BertWordRules {
  bool clean = true;  // control characters are dropped
  bool split_ideographs = true;
  bool strip_accents = true;
  bool lowercase = true;
};

// `take(word)` for each word of `text`, in order, until it returns false; a punctuation mark is a
// word. Bytes that are not UTF-8 are dropped. Looks no further than the word that ends it.
void for_each_bert_word(std::string_view text, const BertWordRules& rules,
                        const std::function<bool(std::string_view)>& take);

}  // namespace spillway
