// SPDX-License-Identifier: Apache-2.0
#include "text/nfc.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "text/nfc_tables.h"
#include "text/utf8.h"

namespace spillway {
namespace {

// Hangul syllables are composed by arithmetic (Unicode Standard, section 3.12).
constexpr char32_t kSyllables = 0xAC00;
constexpr char32_t kLeads = 0x1100;
constexpr char32_t kVowels = 0x1161;
constexpr char32_t kTails = 0x11A7;
constexpr char32_t kLeadCount = 19;
constexpr char32_t kVowelCount = 21;
constexpr char32_t kTailCount = 28;
constexpr char32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

// No character below this one is a combining mark, so text that has only lower ones is already NFC.
constexpr char32_t kFirstInteresting = 0x300;

struct Decomposed {
  char32_t code_point;
  uint8_t combining_class;
};

uint8_t combining_class(char32_t c) {
  if (c < kFirstInteresting) return 0;
  const auto after = std::upper_bound(
      kCombiningRanges.begin(), kCombiningRanges.end(), c,
      [](char32_t value, const CombiningRange& range) { return value < range.first; });
  if (after == kCombiningRanges.begin()) return 0;
  const CombiningRange& range = *(after - 1);
  return c <= range.last ? range.combining_class : uint8_t{0};
}

template <size_t N>
const CanonicalDecomposition* find_decomposition(const std::array<CanonicalDecomposition, N>& table,
                                                 char32_t c) {
  const auto found = std::lower_bound(
      table.begin(), table.end(), c,
      [](const CanonicalDecomposition& entry, char32_t value) { return entry.composed < value; });
  return found != table.end() && found->composed == c ? &*found : nullptr;
}

// The recursion ends after a few steps because the tables come from Unicode, not from a file.
void decompose(char32_t c, std::vector<Decomposed>& out) {
  if (c < 0xC0) {
    out.push_back({c, 0});
    return;
  }
  if (c >= kSyllables && c < kSyllables + kSyllableCount) {
    const char32_t index = c - kSyllables;
    out.push_back({kLeads + index / (kVowelCount * kTailCount), 0});
    out.push_back({kVowels + index / kTailCount % kVowelCount, 0});
    if (index % kTailCount != 0) out.push_back({kTails + index % kTailCount, 0});
    return;
  }
  const CanonicalDecomposition* entry = find_decomposition(kCanonicalPairs, c);
  if (entry == nullptr) entry = find_decomposition(kOneWayDecompositions, c);
  if (entry == nullptr) {
    out.push_back({c, combining_class(c)});
    return;
  }
  decompose(entry->first, out);
  if (entry->second != 0) decompose(entry->second, out);
}

const std::unordered_map<uint64_t, char32_t>& pair_index() {
  static const auto index = [] {
    std::unordered_map<uint64_t, char32_t> map;
    for (const auto& entry : kCanonicalPairs)
      map.emplace(uint64_t{entry.first} << 32 | entry.second, entry.composed);
    return map;
  }();
  return index;
}

std::optional<char32_t> try_compose(char32_t a, char32_t b) {
  if (a >= kLeads && a < kLeads + kLeadCount && b >= kVowels && b < kVowels + kVowelCount)
    return kSyllables + ((a - kLeads) * kVowelCount + (b - kVowels)) * kTailCount;
  if (a >= kSyllables && a < kSyllables + kSyllableCount && (a - kSyllables) % kTailCount == 0 &&
      b > kTails && b < kTails + kTailCount)
    return a + (b - kTails);
  const auto found = pair_index().find(uint64_t{a} << 32 | b);
  if (found == pair_index().end()) return std::nullopt;
  return found->second;
}

// Sorts each run of marks by combining class; marks of one class keep their order.
void order_marks(std::vector<Decomposed>& text) {
  for (auto begin = text.begin(); begin != text.end();) {
    if (begin->combining_class == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, text.end(), [](const Decomposed& d) { return d.combining_class == 0; });
    std::stable_sort(begin, end, [](const Decomposed& a, const Decomposed& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
}

void compose(std::vector<Decomposed>& text) {
  constexpr size_t kNone = SIZE_MAX;
  size_t starter = kNone;
  size_t kept = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const Decomposed current = text[i];
    // A mark is blocked if a starter, or a mark of the same or a higher class, lies in between.
    const bool adjacent = starter != kNone && kept == starter + 1;
    const bool reachable = starter != kNone &&
                           (adjacent || (text[kept - 1].combining_class != 0 &&
                                         text[kept - 1].combining_class < current.combining_class));
    if (reachable) {
      if (const auto composed = try_compose(text[starter].code_point, current.code_point)) {
        text[starter].code_point = *composed;
        continue;
      }
    }
    if (current.combining_class == 0) starter = kept;
    text[kept++] = current;
  }
  text.resize(kept);
}

enum class Form { kComposed, kDecomposed };

void append_normalized(std::string_view valid, Form form, std::string& out) {
  std::vector<Decomposed> text;
  text.reserve(valid.size());
  for (size_t i = 0; i < valid.size();) {
    const Utf8Char c = decode_utf8(valid, i);
    decompose(c.code_point, text);
    i += c.bytes;
  }
  order_marks(text);
  if (form == Form::kComposed) compose(text);
  for (const Decomposed& d : text) append_utf8(out, d.code_point);
}

bool is_plain(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    if (c.valid && c.code_point >= kFirstInteresting) return false;
    i += c.bytes;
  }
  return true;
}

std::string normalize(std::string_view text, Form form) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix_bytes(text);
    append_normalized(text.substr(0, valid), form, result);
    text.remove_prefix(valid);
    if (text.empty()) break;
    const size_t invalid = decode_utf8(text, 0).bytes;
    result.append(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
  return result;
}

}  // namespace

std::string to_nfc(std::string_view text) {
  return is_plain(text) ? std::string(text) : normalize(text, Form::kComposed);
}

std::string to_nfd(std::string_view text) { return normalize(text, Form::kDecomposed); }

}  // namespace spillway
