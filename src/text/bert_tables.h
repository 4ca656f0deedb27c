// SPDX-License-Identifier: Apache-2.0
// Declares the character ranges that BERT's tokenizers drop or split at; bert_words.cc uses them.
#pragma once

#include <span>

namespace spillway {

struct CodePointRange {
  char32_t first;
  char32_t last;
};

// The ranges of each table are in ascending order.
std::span<const CodePointRange> removed_ranges();  // control characters and the like
std::span<const CodePointRange> ideograph_ranges();
std::span<const CodePointRange> accent_ranges();  // nonspacing marks
std::span<const CodePointRange> punctuation_ranges();

}  // namespace spillway
