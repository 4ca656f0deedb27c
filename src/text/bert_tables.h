// SPDX-License-Identifier: Apache-2.0
// Which characters BERT's tokenizers drop or cut at: the data behind bert_words.cc.
#pragma once

#include <span>

namespace spillway {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

// All ascend.
std::span<const CodePointRange> removed_ranges();  // control characters and the like
std::span<const CodePointRange> ideograph_ranges();
std::span<const CodePointRange> accent_ranges();  // nonspacing marks
std::span<const CodePointRange> punctuation_ranges();

}  // namespace spillway
