// SPDX-License-Identifier: Apache-2.0
// Describes how byte-level BPE splits text into words before it merges: named lists of patterns
// that are applied one after another.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

enum class PreSplit {
  kNone,         // the text is one word
  kGpt2,         // GPT-2, OPT, Phi-2, OLMo, MPT
  kLlama3,       // like GPT-2, but digits in groups of three and line breaks as words
  kGlm4,         // the same words, by the vocabulary's merges alone: GLM-4
  kQwen2,        // like Llama 3, but single digits
  kSmolLm,       // single digits, then GPT-2's pattern: SmolLM, StarCoder, Refact, Command-R
  kFalcon,       // punctuation, then GPT-2's pattern, then digits in groups of three, on bytes
  kGgufDefault,  // almost the same on characters: GGUF files that name none, or "default"
  kGpt4o,        // letters split by case: GPT-4o, Llama 4
  kTekken,       // Mistral NeMo
  kDeepSeekCoder,
  kDeepSeekV3,
  kCustom,  // patterns given in the vocabulary
};

// Finds a value of GGUF's `tokenizer.ggml.pre`; returns nullopt if the name is not known.
[[nodiscard]] std::optional<PreSplit> try_pre_split_from_gguf_name(std::string_view name);

// Returns the name that GGUF has for it; empty if it has none.
std::string_view gguf_pre_split_name(PreSplit pre_split);

// Settings that GGUF files leave out because the name in `tokenizer.ggml.pre` implies them.
struct PreSplitTraits {
  bool normalize_nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // if the file does not say
};
PreSplitTraits pre_split_traits(PreSplit pre_split);

// One way to split: the matches of a pattern and the text between them become words.
struct SplitStage {
  std::string pattern;  // in Oniguruma's dialect, as in tokenizer.json
  // Whether the pattern is matched against one letter for each byte (byte_alphabet.h) instead of
  // the text, as stages after ByteLevel in tokenizer.json are. Half a character may then match as a
  // number.
  bool on_bytes = false;

  bool operator==(const SplitStage&) const = default;
};

// Returns the stages, each of which splits the words of the one before; empty for kNone and
// kCustom.
std::vector<SplitStage> pre_split_stages(PreSplit pre_split);

// Returns the name for a list of stages, or kCustom if the list is not known.
PreSplit pre_split_from_stages(const std::vector<SplitStage>& stages);

// Return the patterns that the pre-tokenizers Digits and Punctuation of tokenizer.json split off.
std::string digits_pattern(bool individual);
std::string punctuation_pattern(bool contiguous);

}  // namespace spillway
