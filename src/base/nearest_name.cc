// SPDX-License-Identifier: Apache-2.0
#include "base/nearest_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace spillway {
namespace {

constexpr size_t kMaxWordBytes = 200;
constexpr size_t kLettersPerEdit = 3;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// Returns the number of edits between two words: insertions, deletions, replacements and swaps of
// neighbours that do not overlap (the optimal string alignment distance).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
    }
    std::swap(before, row);
    std::swap(row, next);
  }
  return row[b.size()];
}

}  // namespace

std::optional<std::string> try_nearest_name(std::string_view word,
                                            std::span<const std::string> names) {
  if (word.empty() || word.size() > kMaxWordBytes) return std::nullopt;
  const std::string wanted = lower(word);
  // Leading dashes do not count as letters: -x is not close to -y.
  const size_t dashes = std::min(wanted.find_first_not_of('-'), wanted.size());
  const size_t letters = wanted.size() - dashes;
  if (letters < 2) return std::nullopt;
  const size_t limit = std::max<size_t>(1, letters / kLettersPerEdit);
  const std::string* nearest = nullptr;
  const std::string* begun = nullptr;
  size_t least = std::numeric_limits<size_t>::max(), count_begun = 0;
  for (const std::string& name : names) {
    const std::string known = lower(name);
    if (known.size() > kMaxWordBytes) continue;
    if (const size_t edits = edit_distance(wanted, known); edits <= limit && edits < least) {
      least = edits;
      nearest = &name;
    }
    if (known.starts_with(wanted)) {
      begun = &name;
      ++count_begun;
    }
  }
  if (nearest == nullptr && count_begun == 1) nearest = begun;
  return nearest == nullptr ? std::nullopt : std::optional(*nearest);
}

std::string did_you_mean(std::string_view word, std::span<const std::string> names) {
  const auto name = try_nearest_name(word, names);
  return name ? fmt::format("; did you mean {}?", *name) : "";
}

}  // namespace spillway
