// SPDX-License-Identifier: Apache-2.0
// Splits text into words as BERT's tokenizers do: at white space, punctuation and ideographs.
#pragma once

#include <functional>
#include <string_view>

namespace spillway {

struct BertWordRules {
  bool clean = true;  // drop control characters
  bool split_ideographs = true;
  bool strip_accents = true;
  bool lowercase = true;
};

// Calls `take(word)` for each word of `text`, in order, until it returns false. A punctuation mark
// is a word. Bytes that are not UTF-8 are dropped. Reads no further than the word at which `take`
// returned false.
void for_each_bert_word(std::string_view text, const BertWordRules& rules,
                        const std::function<bool(std::string_view)>& take);

}  // namespace spillway
