// SPDX-License-Identifier: Apache-2.0
// Converts text to Unicode normalization forms C and D (Unicode Standard Annex 15), which the
// tokenizers of Qwen and BERT apply to their input.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

// Composes as Unicode 9 does, because the tokenizers it must agree with do: marks added to Unicode
// later stay where they are. Bytes that are not UTF-8 stay as they are, and nothing composes across
// them. O(n log n).
std::string to_nfc(std::string_view text);
// Only decomposes: letters and their marks become separate characters.
std::string to_nfd(std::string_view text);

}  // namespace spillway
