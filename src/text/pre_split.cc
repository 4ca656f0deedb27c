// SPDX-License-Identifier: Apache-2.0
#include "text/pre_split.h"

#include <fmt/core.h>

#include <array>
#include <utility>

#include "text/unicode_sets.h"

namespace spillway {
namespace {

constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";
constexpr const char* kGpt4oWords =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenWords =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeekV3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array kNamed = {PreSplit::kGpt2,      PreSplit::kLlama3, PreSplit::kQwen2,
                               PreSplit::kSmolLm,    PreSplit::kFalcon, PreSplit::kGgufDefault,
                               PreSplit::kGpt4o,     PreSplit::kTekken, PreSplit::kDeepSeekCoder,
                               PreSplit::kDeepSeekV3};

constexpr std::pair<std::string_view, PreSplit> kGgufNames[] = {
    {"gpt-2", PreSplit::kGpt2},
    {"phi-2", PreSplit::kGpt2},
    {"mpt", PreSplit::kGpt2},
    {"olmo", PreSplit::kGpt2},
    {"roberta-bpe", PreSplit::kGpt2},
    {"jina-es", PreSplit::kGpt2},
    {"jina-de", PreSplit::kGpt2},
    {"llama-bpe", PreSplit::kLlama3},
    {"llama3", PreSplit::kLlama3},
    {"llama-v3", PreSplit::kLlama3},
    {"falcon3", PreSplit::kLlama3},
    {"dbrx", PreSplit::kLlama3},
    {"smaug-bpe", PreSplit::kLlama3},
    {"glm4", PreSplit::kGlm4},
    {"chatglm-bpe", PreSplit::kGlm4},
    {"qwen2", PreSplit::kQwen2},
    {"deepseek-r1-qwen", PreSplit::kQwen2},
    {"stablelm2", PreSplit::kQwen2},
    {"smollm", PreSplit::kSmolLm},
    {"starcoder", PreSplit::kSmolLm},
    {"refact", PreSplit::kSmolLm},
    {"command-r", PreSplit::kSmolLm},
    {"codeshell", PreSplit::kSmolLm},
    {"falcon", PreSplit::kFalcon},
    {"default", PreSplit::kGgufDefault},
    {"gpt-4o", PreSplit::kGpt4o},
    {"llama4", PreSplit::kGpt4o},
    {"tekken", PreSplit::kTekken},
    {"deepseek-coder", PreSplit::kDeepSeekCoder},
    {"deepseek-v3", PreSplit::kDeepSeekV3},
};

}  // namespace

std::optional<PreSplit> try_pre_split_from_gguf_name(std::string_view name) {
  for (const auto& [known, pre_split] : kGgufNames)
    if (known == name) return pre_split;
  return std::nullopt;
}

std::string_view gguf_pre_split_name(PreSplit pre_split) {
  for (const auto& [name, known] : kGgufNames)
    if (known == pre_split) return name;
  return {};
}

PreSplitTraits pre_split_traits(PreSplit pre_split) {
  switch (pre_split) {
    case PreSplit::kLlama3:
      return {.ignore_merges = true, .add_bos = true};
    case PreSplit::kTekken:
      return {.ignore_merges = true, .add_bos = true};
    case PreSplit::kQwen2:
      return {.normalize_nfc = true};
    default:
      return {};
  }
}

std::vector<SplitStage> pre_split_stages(PreSplit pre_split) {
  switch (pre_split) {
    case PreSplit::kNone:
    case PreSplit::kCustom:
      return {};
    case PreSplit::kGpt2:
      return {{kGpt2Words}};
    case PreSplit::kLlama3:
    case PreSplit::kGlm4:
      return {{kLlama3Words}};
    case PreSplit::kQwen2:
      return {{kQwen2Words}};
    case PreSplit::kSmolLm:
      return {{digits_pattern(true)}, {kGpt2Words}};
    case PreSplit::kFalcon:
      return {{punctuation_pattern(true)},
              {kGpt2Words},
              {digits_pattern(false), true},
              {"[0-9][0-9][0-9]", true}};
    case PreSplit::kGgufDefault:
      return {{R"([\p{P}\$\+<=>\^~\|`]+)"}, {kGpt2Words}, {R"(\p{N}+)"}, {R"([0-9][0-9][0-9])"}};
    case PreSplit::kGpt4o:
      return {{kGpt4oWords}};
    case PreSplit::kTekken:
      return {{kTekkenWords}};
    case PreSplit::kDeepSeekCoder:
      return {{R"([\r\n])"},
              {R"(\s?\p{L}+)"},
              {R"(\s?\p{P}+)"},
              {"[一-龥ࠀ-一가-퟿]+"},
              {digits_pattern(true)}};
    case PreSplit::kDeepSeekV3:
      return {{R"(\p{N}{1,3})"}, {"[一-龥぀-ゟ゠-ヿ]+"}, {kDeepSeekV3Words}};
  }
  return {};
}

PreSplit pre_split_from_stages(const std::vector<SplitStage>& stages) {
  if (stages.empty()) return PreSplit::kNone;
  for (PreSplit pre_split : kNamed)
    if (pre_split_stages(pre_split) == stages) return pre_split;
  return PreSplit::kCustom;
}

std::string digits_pattern(bool individual) {
  return fmt::format(R"([\p{{N}}{}]{})", unicode_sets::kNumbersOfDigits, individual ? "" : "+");
}

std::string punctuation_pattern(bool contiguous) {
  return fmt::format(R"((?:(?![{}])[\p{{P}}\$\+<=>\^~\|`{}]){})", unicode_sets::kLessOfPunctuation,
                     unicode_sets::kMoreOfPunctuation, contiguous ? "+" : "");
}

}  // namespace spillway
