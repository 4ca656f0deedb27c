// SPDX-License-Identifier: Apache-2.0
#include "engine/lookup_drafts.h"

#include <algorithm>

namespace spillway {
namespace {

uint64_t pair_before(std::span<const TokenId> tokens, size_t position) {
  return uint64_t{static_cast<uint32_t>(tokens[position - 2])} << 32 |
         static_cast<uint32_t>(tokens[position - 1]);
}

}  // namespace

// Indexes the pairs that a token follows; the newest pair is the one to look for.
void LookupDrafts::read(std::span<const TokenId> tokens) {
  for (size_t at = earlier_.size(); at < tokens.size(); ++at) {
    int32_t& latest = latest_[pair_before(tokens, at)];
    earlier_.push_back(latest);
    latest = static_cast<int32_t>(at);
  }
}

std::vector<TokenId> LookupDrafts::propose(std::span<const TokenId> tokens, int most) {
  read(tokens);
  const size_t end = tokens.size();
  if (end < 2 || most <= 0) return {};
  const auto found = latest_.find(pair_before(tokens, end));
  if (found == latest_.end()) return {};
  size_t best = 0, most_equal = 0;
  auto place = static_cast<size_t>(found->second);
  for (int i = 0; i < kMostPlaces && place > 0; ++i) {
    size_t equal = 2;
    while (equal < kMostCompared && equal < place &&
           tokens[place - 1 - equal] == tokens[end - 1 - equal])
      ++equal;
    if (equal > most_equal) {
      most_equal = equal;
      best = place;
    }
    place = static_cast<size_t>(earlier_[place]);
  }
  // Beyond the end of the text, the drafts repeat themselves.
  std::vector<TokenId> drafts;
  for (size_t at = best; drafts.size() < static_cast<size_t>(most); ++at)
    drafts.push_back(at < end ? tokens[at] : drafts[at - end]);
  return drafts;
}

}  // namespace spillway
