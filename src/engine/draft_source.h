// SPDX-License-Identifier: Apache-2.0
// Proposes tokens that may come next in a sequence.
#pragma once

#include <span>
#include <vector>

#include "text/token_id.h"

namespace spillway {

// One per sequence; not thread-safe.
class DraftSource {
 public:
  virtual ~DraftSource() = default;

  // Returns up to `most` tokens that may follow. `tokens` is the prompt and the answer so far; it
  // begins with the tokens of the previous call.
  virtual std::vector<TokenId> propose(std::span<const TokenId> tokens, int most) = 0;

  // Returns whether a draft is right if `drawn` is the token that was sampled in its place.
  virtual bool accepts(TokenId draft, TokenId drawn) { return draft == drawn; }
};

}  // namespace spillway
