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

  // Up to `most` tokens that may follow. `tokens`: the prompt and the answer so far, which begin
  // with those of the call before.
  virtual std::vector<TokenId> propose(std::span<const TokenId> tokens, int most) = 0;

  // Whether a draft is right where `drawn` is the token that is drawn there.
  virtual bool accepts(TokenId draft, TokenId drawn) { return draft == drawn; }
};

}  // namespace spillway
