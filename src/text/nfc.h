// SPDX-License-Identifier: Apache-2.0
// Unicode normalization forms C and D, which the tokenizers of Qwen and BERT apply to their input
// (Unicode Standard Annex 15).
#pragma once

#include <string>
#include <string_view>

namespace spillway {

// As of Unicode 9, like the tokenizers it must agree with: marks that came later stay where they
// are. Bytes that are not UTF-8 stay as they are, and nothing composes across them. O(n log n).
std::string to_nfc(std::string_view text);
// The same without composing: letters and their marks apart.
std::string to_nfd(std::string_view text);

}  // namespace spillway
