// SPDX-License-Identifier: Apache-2.0
// How byte-level BPE cuts text into words before it merges: named lists of patterns, applied one
// after another.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

enum class PreSplit {
  kNone,    // the text is one word
  kGpt2,    // GPT-2, OPT, Phi-2, OLMo, MPT
  kLlama3,  // GPT-2's with digits in groups of three and line breaks apart
  kQwen2,   // like Llama 3, single digits
  kSmolLm,  // single digits, then GPT-2's: SmolLM, StarCoder, Refact, Command-R
  kFalcon,  // punctuation, then GPT-2's, then digits in groups of three; also GGUF's "default"
  kGpt4o,   // letters by case: GPT-4o, Llama 4
  kTekken,  // Mistral NeMo
  kDeepSeekCoder,
  kDeepSeekV3,
  kCustom,  // patterns given in the vocabulary
};

// For a value of GGUF's `tokenizer.ggml.pre`; nullopt when the name is not known.
[[nodiscard]] std::optional<PreSplit> try_pre_split_from_gguf_name(std::string_view name);

// The other way; empty for those that GGUF has no name for.
std::string_view gguf_pre_split_name(PreSplit pre_split);

// What GGUF leaves unsaid, since it is implied by the name in `tokenizer.ggml.pre`.
struct PreSplitTraits {
  bool normalize_nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // when the file does not say
};
PreSplitTraits pre_split_traits(PreSplit pre_split);

// The stages, in Oniguruma's dialect as in tokenizer.json; empty for kNone and kCustom.
std::vector<std::string> pre_split_patterns(PreSplit pre_split);

// The name for a list of stages, kCustom when they are not known.
PreSplit pre_split_from_patterns(const std::vector<std::string>& patterns);

}  // namespace spillway
