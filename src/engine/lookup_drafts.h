// SPDX-License-Identifier: Apache-2.0
// Drafts from the text itself: what followed an earlier occurrence of the last tokens (prompt
// look-up decoding).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/draft_source.h"

namespace spillway {

// Finds earlier occurrences of the last two tokens in prompt and answer, and takes the one with the
// most equal tokens before it, the latest among equal ones. Takes the same time for each token,
// however long the text is.
class LookupDrafts final : public DraftSource {
 public:
  std::vector<TokenId> propose(std::span<const TokenId> tokens, int most) override;

 private:
  // The most occurrences of a pair that are looked at, the latest ones, and the most tokens that
  // are compared there.
  static constexpr int kMostPlaces = 32;
  static constexpr int kMostCompared = 16;

  void read(std::span<const TokenId> tokens);

  // `latest_`: the position after the latest occurrence of each pair of tokens. `earlier_`: for
  // each position, the position after the previous occurrence of the pair that ends before it. 0:
  // none.
  std::unordered_map<uint64_t, int32_t> latest_;
  std::vector<int32_t> earlier_ = {0, 0};
};

}  // namespace spillway
