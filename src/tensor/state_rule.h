// SPDX-License-Identifier: Apache-2.0
// Decides which tokens of a sequence the layers of a group still need (model/state_group.h), and
// how many blocks of KV these take.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "tensor/kv_format.h"

namespace spillway {

enum class StateKind : uint8_t {
  kFull,       // keys and values of all tokens
  kWindow,     // keys and values of the last `window` tokens, including the newest
  kChunk,      // keys and values of the tokens since the last multiple of `window`
  kRecurrent,  // one state per sequence, which each token changes
};

// A sequence may be truncated by at most this many of its newest tokens (drafts that were not
// accepted). A window also keeps the tokens that are reached after that. For a step with drafts, a
// recurrent group has a checkpoint: a copy of the state that the sequence had before them.
inline constexpr int kMostCutBack = 16;

// The most groups of layers with the same kind of state that a model may have
// (model/state_group.h).
inline constexpr int kMostStateGroups = 4;
// Holds one T for each group; those of groups that a model lacks keep their initial value.
template <class T>
using PerGroup = std::array<T, kMostStateGroups>;

struct StateRule {
  StateKind kind = StateKind::kFull;
  int64_t window = 0;  // size in tokens of a window or chunk
  bool operator==(const StateRule&) const = default;

  bool is_paged() const { return kind != StateKind::kRecurrent; }
  bool keeps_all() const { return kind == StateKind::kFull || kind == StateKind::kRecurrent; }

  // Returns the first position whose state a token at `position` can reach.
  int64_t first_reachable(int64_t position) const {
    if (kind == StateKind::kWindow) return std::max<int64_t>(position + 1 - window, 0);
    if (kind == StateKind::kChunk) return position / window * window;
    return 0;
  }

  // Returns how many entries of a block table hold `tokens` tokens. A recurrent state is one block
  // for any length.
  int64_t entries(int64_t tokens) const {
    return is_paged() ? blocks_for_tokens(tokens) : std::min<int64_t>(tokens, 1);
  }
  // Returns how many of the first entries no token at or after `position` can reach.
  int64_t unreachable(int64_t position) const {
    return keeps_all() ? 0 : first_reachable(position) / kKvBlockTokens;
  }
  // Returns how many of the first entries are not needed once `computed` tokens are computed, even
  // if the sequence is truncated then.
  int64_t releasable(int64_t computed) const {
    return unreachable(std::max<int64_t>(computed - kMostCutBack, 0));
  }
  // Returns the most blocks that a sequence of `tokens` tokens holds at any time if a step adds up
  // to `step_tokens` of them. The checkpoint of a recurrent group is not counted: a sequence has
  // one only during a step with drafts, and only if a block is free then. A pool with two blocks
  // for each sequence always has a free one.
  int64_t most_blocks(int64_t tokens, int64_t step_tokens) const {
    const int64_t all = entries(tokens);
    if (keeps_all()) return all;
    return std::min(all, blocks_for_tokens(window + kMostCutBack + step_tokens) + 1);
  }
};

}  // namespace spillway
