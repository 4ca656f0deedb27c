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
  kNone,         // the text is one word
  kGpt2,         // GPT-2, OPT, Phi-2, OLMo, MPT
  kLlama3,       // GPT-2's with digits in groups of three and line breaks apart
  kQwen2,        // like Llama 3, single digits
  kSmolLm,       // single digits, then GPT-2's: SmolLM, StarCoder, Refact, Command-R
  kFalcon,       // punctuation, then GPT-2's, then digits in groups of three, byte by byte
  kGgufDefault,  // much the same by characters: GGUF files that name none, or "default"
  kGpt4o,        // letters by case: GPT-4o, Llama 4
  kTekken,       // Mistral NeMo
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

// One way to cut: the matches of a pattern and what lies between them.
struct SplitStage {
  std::string pattern;  // in Oniguruma's dialect, as in tokenizer.json
  // Whether the pattern sees a letter for each byte (byte_alphabet.h) in place of the text, as what
  // comes after ByteLevel in tokenizer.json does: half a character may then look like a number.
  bool on_bytes = false;

  bool operator==(const SplitStage&) const = default;
};

// The stages, each cutting what the one before has left; empty for kNone and kCustom.
std::vector<SplitStage> pre_split_stages(PreSplit pre_split);

// The name for a list of stages, kCustom when they are not known.
PreSplit pre_split_from_stages(const std::vector<SplitStage>& stages);

// What the pre-tokenizers of these names in tokenizer.json cut out.
std::string digits_pattern(bool individual);
std::string punctuation_pattern(bool contiguous);

}  // namespace spillway
