// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf_tokenizer_keys.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace spillway {
namespace {

constexpr const char* kSplitPatterns = "spillway.tokenizer.split_patterns";
constexpr const char* kSplitOnBytes = "spillway.tokenizer.split_on_bytes";
constexpr const char* kUnknown = "spillway.tokenizer.unknown_token_id";
constexpr const char* kEndOfGeneration = "spillway.tokenizer.end_of_generation";
constexpr const char* kAddedTokenFlags = "spillway.tokenizer.added_token_flags";

// Flags of the vocabulary that GGUF has no key for.
constexpr std::pair<const char*, bool Vocabulary::*> kFlags[] = {
    {"spillway.tokenizer.space_prefix_first_only", &Vocabulary::space_prefix_first_only},
    {"spillway.tokenizer.space_prefix_unless_space", &Vocabulary::space_prefix_unless_space},
    {"spillway.tokenizer.split_on_space", &Vocabulary::split_on_space},
    {"spillway.tokenizer.fuse_unk", &Vocabulary::fuse_unk},
    {"spillway.tokenizer.ignore_merges", &Vocabulary::ignore_merges},
    {"spillway.tokenizer.normalize_nfc", &Vocabulary::normalize_nfc},
};
enum AddedTokenFlag : int { kLstrip = 1, kRstrip = 2, kSingleWord = 4 };

int32_t gguf_token_type(TokenKind kind) {
  switch (kind) {
    case TokenKind::kNormal:
      return 1;
    case TokenKind::kUnknown:
      return 2;
    case TokenKind::kControl:
      return 3;
    case TokenKind::kUserDefined:
      return 4;
    case TokenKind::kUnused:
      return 5;
    case TokenKind::kByte:
      return 6;
  }
  return 1;
}

template <class T>
NumberArray number_array(NumberType type, const std::vector<T>& values) {
  const auto raw = std::as_bytes(std::span(values));
  return {type, {raw.begin(), raw.end()}};
}

// Expresses a list of merges as scores. GGUF's "llama" tokenizers merge those two neighbours that
// make the token with the best score; a list of merges names pairs. Both give the same tokens if
// every pair that makes a token is in the list, and the pairs of one token follow each other.
// Tokens for which that does not hold are doubtful.
class MergesAsScores {
 public:
  explicit MergesAsScores(const Vocabulary& vocabulary) {
    std::unordered_set<std::string_view> texts;
    for (const VocabToken& token : vocabulary.tokens) {
      if (token.kind == TokenKind::kNormal && !token.text.empty()) texts.insert(token.text);
    }
    std::unordered_set<std::string> pairs;
    std::string last;
    for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
      const auto pair = try_split_merge(vocabulary.merges[rank]);
      if (!pair) continue;
      std::string joined = std::string(pair->first) + std::string(pair->second);
      const bool is_new = ranks_.emplace(joined, rank).second;
      if (!is_new && joined != last) doubtful_.push_back(joined);
      last = std::move(joined);
      pairs.insert(vocabulary.merges[rank]);
    }
    for (const std::string_view text : texts) {
      for (size_t cut = decode_utf8(text, 0).bytes; cut < text.size();
           cut += decode_utf8(text, cut).bytes) {
        const std::string_view left = text.substr(0, cut), right = text.substr(cut);
        if (texts.contains(left) && texts.contains(right) &&
            !pairs.contains(std::string(left) + " " + std::string(right)))
          doubtful_.emplace_back(text);
      }
    }
  }

  // The earlier a token is made, the higher its score; those that no merge makes come last.
  float score(const VocabToken& token) const {
    if (token.kind != TokenKind::kNormal) return 0;
    const auto found = ranks_.find(token.text);
    return -static_cast<float>(found != ranks_.end() ? found->second : ranks_.size());
  }

  // Returns whether doubtful tokens, alone and twice in a row, are split the same way by both.
  bool split_alike(Vocabulary vocabulary) const {
    if (doubtful_.empty()) return true;
    vocabulary.add_space_prefix = false;
    const Tokenizer by_rank(vocabulary);
    vocabulary.merges.clear();
    for (VocabToken& token : vocabulary.tokens) token.score = score(token);
    const Tokenizer by_score(std::move(vocabulary));
    const EncodeOptions plain{.add_special = false};
    return std::ranges::all_of(doubtful_, [&](const std::string& text) {
      return by_rank.encode(text, plain) == by_score.encode(text, plain) &&
             by_rank.encode(text + text, plain) == by_score.encode(text + text, plain);
    });
  }

 private:
  std::unordered_map<std::string, size_t> ranks_;
  std::vector<std::string> doubtful_;
};

// Adds the texts and types of all tokens, and of unused ones up to `rows`.
void add_tokens(const Vocabulary& vocabulary, size_t rows, Metadata& keys) {
  StringArray texts;
  std::vector<int32_t> types;
  for (size_t id = 0; id < std::max(rows, vocabulary.tokens.size()); ++id) {
    static const VocabToken kNone{.text = {}, .kind = TokenKind::kUnused};
    const VocabToken& token = id < vocabulary.tokens.size() ? vocabulary.tokens[id] : kNone;
    texts.push_back(token.text.empty() ? fmt::format("[PAD{}]", id) : token.text);
    types.push_back(gguf_token_type(token.kind));
  }
  keys.add("tokenizer.ggml.tokens", std::move(texts));
  keys.add("tokenizer.ggml.token_type", number_array(NumberType::kI32, types));
}

void add_added_token_flags(const Vocabulary& vocabulary, Metadata& keys) {
  std::vector<int32_t> flags;  // id, flags, id, flags, ...
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const VocabToken& token = vocabulary.tokens[id];
    const int set = (token.lstrip ? kLstrip : 0) | (token.rstrip ? kRstrip : 0) |
                    (token.single_word ? kSingleWord : 0);
    if (set == 0) continue;
    flags.push_back(static_cast<int32_t>(id));
    flags.push_back(set);
  }
  if (!flags.empty()) keys.add(kAddedTokenFlags, number_array(NumberType::kI32, flags));
}

void add_special_ids(const Vocabulary& vocabulary, Metadata& keys) {
  const auto add = [&](const char* key, std::optional<TokenId> id) {
    if (id) keys.add(key, int64_t{*id});
  };
  std::vector<int32_t> ends;
  for (const TokenId id : vocabulary.end_of_generation) {
    if (id != vocabulary.eos && id != vocabulary.eot) ends.push_back(id);
  }
  std::optional<TokenId> eot = vocabulary.eot;
  if (!eot && !ends.empty()) {
    eot = ends.front();
    ends.erase(ends.begin());
  }
  add("tokenizer.ggml.bos_token_id", vocabulary.bos);
  add("tokenizer.ggml.eos_token_id", vocabulary.eos);
  add("tokenizer.ggml.eot_token_id", eot);
  add("tokenizer.ggml.padding_token_id", vocabulary.pad);
  const bool sentence_piece = vocabulary.model == TokenizerModel::kSentencePiece;
  add(sentence_piece ? "tokenizer.ggml.unknown_token_id" : kUnknown, vocabulary.unk);
  if (!ends.empty()) keys.add(kEndOfGeneration, number_array(NumberType::kI32, ends));
  keys.add("tokenizer.ggml.add_bos_token", vocabulary.add_bos);
  keys.add("tokenizer.ggml.add_eos_token", vocabulary.add_eos);
  keys.add("tokenizer.ggml.add_space_prefix", vocabulary.add_space_prefix);
}

// Adds our flags that differ from what a reader takes the pre-split's name, or the model, to mean.
void add_flags(const Vocabulary& vocabulary, const Vocabulary& implied, Metadata& keys,
               std::vector<std::string>& notes) {
  for (const auto& [key, flag] : kFlags) {
    if (vocabulary.*flag != implied.*flag) keys.add(key, vocabulary.*flag);
  }
  if (vocabulary.normalize_nfc && !implied.normalize_nfc)
    notes.emplace_back("llama.cpp will not compose characters (NFC) as the tokenizer does");
  if (vocabulary.ignore_merges != implied.ignore_merges)
    notes.emplace_back("llama.cpp may take other tokens for words that are tokens themselves");
  if (vocabulary.space_prefix_first_only)
    notes.emplace_back(
        "llama.cpp will put a space after special tokens, where the tokenizer does not");
}

}  // namespace

std::vector<std::string> add_tokenizer_keys(const Vocabulary& vocabulary, int64_t embedding_rows,
                                            Metadata& keys) {
  std::vector<std::string> notes;
  const auto rows = static_cast<size_t>(embedding_rows);
  if (vocabulary.tokens.size() > rows) {
    notes.push_back(
        fmt::format("the tokenizer has {} tokens for {} rows of embeddings; llama.cpp will refuse",
                    vocabulary.tokens.size(), rows));
  }
  Vocabulary implied;
  if (vocabulary.model == TokenizerModel::kSentencePiece) {
    keys.add("tokenizer.ggml.model", std::string("llama"));
    keys.add("tokenizer.ggml.pre", std::string("default"));
    const MergesAsScores scores(vocabulary);
    std::vector<float> values;
    for (const VocabToken& token : vocabulary.tokens) values.push_back(scores.score(token));
    const float last = -static_cast<float>(vocabulary.merges.size());
    values.resize(std::max(rows, values.size()), last);
    keys.add("tokenizer.ggml.scores", number_array(NumberType::kF32, values));
    if (!scores.split_alike(vocabulary))
      notes.emplace_back(
          "llama.cpp merges by scores, so that some texts become other tokens there");
  } else {
    const std::string_view name = gguf_pre_split_name(vocabulary.pre_split);
    keys.add("tokenizer.ggml.model", std::string("gpt2"));
    keys.add("tokenizer.ggml.pre", std::string(name.empty() ? "default" : name));
    if (name.empty()) {
      std::vector<std::string> patterns;
      std::vector<int32_t> on_bytes;
      for (const SplitStage& stage : vocabulary.split_stages) {
        patterns.push_back(stage.pattern);
        on_bytes.push_back(stage.on_bytes ? 1 : 0);
      }
      keys.add(kSplitPatterns, StringArray(patterns));
      keys.add(kSplitOnBytes, number_array(NumberType::kI32, on_bytes));
      notes.emplace_back("llama.cpp does not know how this tokenizer splits words");
    }
    const PreSplitTraits traits =
        pre_split_traits(name.empty() ? PreSplit::kFalcon : vocabulary.pre_split);
    implied.ignore_merges = traits.ignore_merges;
    implied.normalize_nfc = traits.normalize_nfc;
  }
  add_tokens(vocabulary, rows, keys);
  if (!vocabulary.merges.empty()) keys.add("tokenizer.ggml.merges", StringArray(vocabulary.merges));
  add_special_ids(vocabulary, keys);
  add_added_token_flags(vocabulary, keys);
  add_flags(vocabulary, implied, keys, notes);
  if (!vocabulary.chat_template.empty())
    keys.add("tokenizer.chat_template", vocabulary.chat_template);
  return notes;
}

void read_own_tokenizer_keys(const Metadata& keys, Vocabulary& vocabulary) {
  for (const auto& [key, flag] : kFlags) {
    if (const auto value = keys.try_bool(key)) vocabulary.*flag = *value;
  }
  const auto checked_id = [&](const char* key, int64_t id) {
    SPW_CHECK(id >= 0 && id < std::ssize(vocabulary.tokens), kInvalidArgument,
              "{}: {} names token {} of {}", keys.source(), key, id, vocabulary.tokens.size());
    return static_cast<TokenId>(id);
  };
  if (const StringArray* patterns = keys.try_string_array(kSplitPatterns)) {
    const std::vector<int64_t> on_bytes =
        keys.try_int_array(kSplitOnBytes).value_or(std::vector<int64_t>());
    for (const std::string_view pattern : *patterns) {
      const size_t stage = vocabulary.split_stages.size();
      vocabulary.split_stages.push_back(
          {std::string(pattern), stage < on_bytes.size() && on_bytes[stage] != 0});
    }
    vocabulary.pre_split = patterns->empty() ? PreSplit::kNone : PreSplit::kCustom;
  }
  if (const auto id = keys.try_int(kUnknown)) vocabulary.unk = checked_id(kUnknown, *id);
  if (const auto ids = keys.try_int_array(kEndOfGeneration)) {
    for (const int64_t id : *ids)
      vocabulary.end_of_generation.push_back(checked_id(kEndOfGeneration, id));
  }
  if (const auto flags = keys.try_int_array(kAddedTokenFlags)) {
    SPW_CHECK(flags->size() % 2 == 0, kInvalidArgument, "{}: {} has an odd number of entries",
              keys.source(), kAddedTokenFlags);
    for (size_t i = 0; i < flags->size(); i += 2) {
      const TokenId id = checked_id(kAddedTokenFlags, (*flags)[i]);
      VocabToken& token = vocabulary.tokens[static_cast<size_t>(id)];
      const int64_t set = (*flags)[i + 1];
      token.lstrip = (set & kLstrip) != 0;
      token.rstrip = (set & kRstrip) != 0;
      token.single_word = (set & kSingleWord) != 0;
    }
  }
}

}  // namespace spillway
