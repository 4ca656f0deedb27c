// SPDX-License-Identifier: Apache-2.0
#include "predict/prompt_features.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

namespace spillway {
namespace {

// Found by cross-validation on Alpaca's answers; docs/notes/scheduling.md says what each is worth.
constexpr float kOfHead = 1, kOfPieces = 1, kOfFirstWords = 0.3F, kOfLengths = 0.3F,
                kOfPairs = 0.15F, kOfRest = 0.5F, kOfBias = 0.5F;
constexpr size_t kMaxHeadWords = 64, kMaxRestWords = 200;
constexpr size_t kLongestWord = 24, kShortestPiece = 3, kLongestPiece = 5;  // bytes
// Only this much of a text is read, so that the cost of a prediction is bounded.
constexpr size_t kMaxTextBytes = 16 << 10;

// The kind of a feature, which is hashed along with its value.
enum class Kind : uint64_t {
  kWord = 1,
  kTwoWords,
  kPiece,
  kFirstWord,
  kFirstTwo,
  kRestBucket,
  kHeadBucket,
  kScale,
  kFirstAndWhether,
  kFirstAndBucket,
  kFirstAndScale,
  kRestWord,
};

// FNV-1a with a final mixing step, since the slot is taken from the low bits.
class Hash {
 public:
  explicit Hash(Kind kind)
      : state_(1469598103934665603ULL ^ (static_cast<uint64_t>(kind) * 0x9E3779B97F4A7C15ULL)) {}
  Hash& add(unsigned char byte) {
    state_ = (state_ ^ byte) * 1099511628211ULL;
    return *this;
  }
  Hash& add(uint64_t number) {
    for (int i = 0; i < 8; ++i) add(static_cast<unsigned char>(number >> (8 * i)));
    return *this;
  }
  uint32_t slot() const {
    uint64_t h = state_ ^ (state_ >> 29);
    h *= 0xBF58476D1CE4E5B9ULL;
    return static_cast<uint32_t>((h ^ (h >> 32)) % kFeatureSlots);
  }

 private:
  uint64_t state_;
};

// A word's id, and its first letters for n-grams.
struct Word {
  uint64_t id = 0;
  std::array<char, kLongestWord> letters = {};
  size_t size = 0;  // number of letters that are kept
};

bool is_space(unsigned char c) { return c <= ' '; }
bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
bool is_letter(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 128 || c == '\'';
}
char lowered(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// One-digit numbers keep their values ("5 sentences"), of longer ones only the rough size counts
// (1987 equals 1988).
uint64_t number_class(std::string_view digits) {
  if (digits.size() == 1) return static_cast<uint64_t>(digits[0] - '0');
  if (digits.size() == 2) return 10;
  return digits == "100" ? 100 : 1000;
}

// Returns at most `most` words of the text; `all` counts the words beyond those, too.
std::vector<Word> words_of(std::string_view text, size_t most, size_t& all) {
  std::vector<Word> words;
  all = 0;
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (is_space(c)) {
      ++i;
      continue;
    }
    const size_t start = i++;
    const bool of_letters = is_letter(c), of_digits = is_digit(c);
    while (i < text.size() && ((of_letters && is_letter(static_cast<unsigned char>(text[i]))) ||
                               (of_digits && is_digit(static_cast<unsigned char>(text[i])))))
      ++i;
    if (++all > most) continue;
    Word& word = words.emplace_back();
    Hash hash(Kind::kWord);
    if (of_digits) {
      const uint64_t number = number_class(text.substr(start, i - start));
      hash.add(static_cast<unsigned char>('#')).add(number);
    } else {
      for (const char letter : text.substr(start, i - start)) {
        hash.add(static_cast<unsigned char>(lowered(letter)));
        if (word.size < kLongestWord) word.letters[word.size++] = lowered(letter);
      }
    }
    word.id = hash.slot() | (static_cast<uint64_t>(i - start) << 32);
  }
  return words;
}

class Collector {
 public:
  Collector() { features_.reserve(256); }
  void add(uint32_t slot, float value) { features_.push_back({slot, value}); }
  // Adds each slot once, scaled so that the group's vector has length `length` however many there
  // are.
  void add_group(std::vector<uint32_t>& slots, float length) {
    std::ranges::sort(slots);
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    if (slots.empty()) return;
    const float value = length / std::sqrt(static_cast<float>(slots.size()));
    for (const uint32_t slot : slots) add(slot, value);
    slots.clear();
  }
  std::vector<PromptFeature> take() { return std::move(features_); }

 private:
  std::vector<PromptFeature> features_;
};

void add_pieces(const Word& word, std::vector<uint32_t>& slots) {
  std::array<char, kLongestWord + 2> marked{};
  marked[0] = '<';
  std::copy_n(word.letters.begin(), word.size, marked.begin() + 1);
  const size_t size = word.size + 2;
  marked[size - 1] = '>';
  for (size_t start = 0; start + kShortestPiece <= size; ++start) {
    Hash hash(Kind::kPiece);
    for (size_t n = 1; n <= kLongestPiece && start + n <= size; ++n) {
      hash.add(static_cast<unsigned char>(marked[start + n - 1]));
      if (n >= kShortestPiece) slots.push_back(hash.slot());
    }
  }
}

uint64_t log_bucket(size_t count, double per_doubling) {
  return static_cast<uint64_t>(std::log2(static_cast<double>(count) + 1) * per_doubling);
}

// Features of the head's words, the words that follow it, and the full number of words of each.
std::vector<PromptFeature> features_of(std::span<const Word> head, std::span<const Word> rest,
                                       size_t head_count, size_t rest_count) {
  Collector all;
  std::vector<uint32_t> slots;
  slots.reserve(256);
  for (size_t i = 0; i < head.size(); ++i) {
    slots.push_back(Hash(Kind::kWord).add(head[i].id).slot());
    if (i > 0) slots.push_back(Hash(Kind::kTwoWords).add(head[i - 1].id).add(head[i].id).slot());
  }
  all.add_group(slots, kOfHead);
  for (const Word& word : head)
    if (word.size > 0) add_pieces(word, slots);
  all.add_group(slots, kOfPieces);
  const uint64_t first = head.empty() ? 0 : head[0].id;
  all.add(Hash(Kind::kFirstWord).add(first).slot(), kOfFirstWords);
  if (head.size() > 1)
    all.add(Hash(Kind::kFirstTwo).add(first).add(head[1].id).slot(), kOfFirstWords);
  const uint64_t rest_bucket = log_bucket(rest_count, 1.5);
  const auto rest_scale = static_cast<float>(std::log1p(static_cast<double>(rest_count)) / 4);
  const auto head_scale = static_cast<float>(std::log1p(static_cast<double>(head_count)) / 4);
  all.add(Hash(Kind::kRestBucket).add(rest_bucket).slot(), kOfLengths);
  all.add(Hash(Kind::kHeadBucket).add(log_bucket(head_count, 2)).slot(), kOfLengths);
  all.add(Hash(Kind::kScale).add(uint64_t{0}).slot(), kOfLengths * rest_scale);
  all.add(Hash(Kind::kScale).add(uint64_t{1}).slot(), kOfLengths * head_scale);
  all.add(Hash(Kind::kScale).add(uint64_t{2}).slot(), kOfBias);
  // Answers to "Rewrite this" are as long as the text that follows, so these pair the first word
  // with the rest's length.
  all.add(Hash(Kind::kFirstAndWhether).add(first).add(uint64_t{rest_count > 0}).slot(), kOfPairs);
  all.add(Hash(Kind::kFirstAndBucket).add(first).add(rest_bucket).slot(), kOfPairs);
  all.add(Hash(Kind::kFirstAndScale).add(first).slot(), kOfPairs * rest_scale);
  for (const Word& word : rest) slots.push_back(Hash(Kind::kRestWord).add(word.id).slot());
  all.add_group(slots, kOfRest);
  return all.take();
}

std::vector<PromptFeature> features_of_tokens(std::span<const TokenId> tokens) {
  const auto as_words = [](std::span<const TokenId> ids) {
    std::vector<Word> words;
    for (const TokenId id : ids) words.push_back({.id = static_cast<uint64_t>(id)});
    return words;
  };
  const size_t head = std::min(tokens.size(), kMaxHeadWords);
  const size_t rest = std::min(tokens.size() - head, kMaxRestWords);
  return features_of(as_words(tokens.first(head)), as_words(tokens.last(rest)), head,
                     tokens.size() - head);
}

}  // namespace

std::vector<PromptFeature> prompt_features(const LengthQuery& query) {
  if (query.text.empty()) return features_of_tokens(query.tokens);
  const size_t begin = std::min(query.text.find_first_not_of(" \t\r\n"), query.text.size());
  const std::string_view text = query.text.substr(begin);
  const size_t line = std::min(text.find('\n'), text.size());
  const std::string_view head = text.substr(0, std::min(line, kMaxTextBytes));
  const std::string_view rest = text.substr(std::max(head.size(), line));
  size_t head_count = 0, rest_count = 0;
  const std::vector<Word> of_head = words_of(head, kMaxHeadWords, head_count);
  const std::vector<Word> of_rest =
      words_of(rest.substr(0, kMaxTextBytes), kMaxRestWords, rest_count);
  // Assumes that the bytes that were not read have as many words each.
  if (rest.size() > kMaxTextBytes) rest_count = rest_count * (rest.size() / kMaxTextBytes + 1);
  return features_of(of_head, of_rest, head_count, rest_count);
}

}  // namespace spillway
