// SPDX-License-Identifier: Apache-2.0
// Drafts from the text itself: what followed the last tokens where they stood before (prompt
// look-up decoding).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/draft_source.h"

namespace spillway {

// Finds the last two tokens earlier in prompt and answer, and of these places the one with the most
// equal tokens before it, among equal ones the latest. Takes the same time for each token, however
// long the text is.
class LookupDrafts final : public DraftSource {
 public:
  std::vector<TokenId> propose(std::span<const TokenId> tokens, int most) override;

 private:
  // Places of a pair that are looked at, the latest ones, and tokens before it that are compared.
  static constexpr int kMostPlaces = 32;
  static constexpr int kMostCompared = 16;

  void read(std::span<const TokenId> tokens);

  // Of each pair of tokens, the position behind it where it stood last; and of each position, where
  // the pair before it stood before that. 0: nowhere.
  std::unordered_map<uint64_t, int32_t> latest_;
  std::vector<int32_t> earlier_ = {0, 0};
};

}  // namespace spillway
