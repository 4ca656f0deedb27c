// SPDX-License-Identifier: Apache-2.0
// Which of a sequence's tokens the layers of a group still need (model/state_group.h), and how many
// blocks of KV that takes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "tensor/kv_format.h"

namespace spillway {

enum class StateKind : uint8_t {
  kFull,       // keys and values of all tokens
  kWindow,     // of the last `window` tokens, the newest included
  kChunk,      // of the tokens since the last multiple of `window`
  kRecurrent,  // one state a sequence, which each token changes
};

// A sequence may be cut back by so many of its newest tokens (drafts that were not accepted). A
// window keeps what these can reach. A recurrent group has a checkpoint for a step with drafts: a
// copy of the state that the sequence had before them.
inline constexpr int kMostCutBack = 16;

// A model has at most so many groups of layers that keep the same state (model/state_group.h).
inline constexpr int kMostStateGroups = 4;
// One of something for each group; those that a model does not have stay as they are made.
template <class T>
using PerGroup = std::array<T, kMostStateGroups>;

struct StateRule {
  StateKind kind = StateKind::kFull;
  int64_t window = 0;  // tokens, of a window or chunk
  bool operator==(const StateRule&) const = default;

  bool is_paged() const { return kind != StateKind::kRecurrent; }
  bool keeps_all() const { return kind == StateKind::kFull || kind == StateKind::kRecurrent; }

  // The first position whose state a token at `position` can reach.
  int64_t first_reachable(int64_t position) const {
    if (kind == StateKind::kWindow) return std::max<int64_t>(position + 1 - window, 0);
    if (kind == StateKind::kChunk) return position / window * window;
    return 0;
  }

  // Entries of a sequence's block table that hold `tokens` tokens. A recurrent state is one block,
  // however long the sequence.
  int64_t entries(int64_t tokens) const {
    return is_paged() ? blocks_for_tokens(tokens) : std::min<int64_t>(tokens, 1);
  }
  // Of these, how many of the first no token at `position` or behind it reaches.
  int64_t unreachable(int64_t position) const {
    return keeps_all() ? 0 : first_reachable(position) / kKvBlockTokens;
  }
  // Of these, how many of the first no token needs any more once `computed` tokens are there, be it
  // that the sequence is cut back.
  int64_t releasable(int64_t computed) const {
    return unreachable(std::max<int64_t>(computed - kMostCutBack, 0));
  }
  // Blocks that a sequence of `tokens` tokens holds at most at once, whose steps bring up to
  // `step_tokens` of them. A recurrent group's checkpoint is not among them: a sequence has it only
  // for a step that brings drafts, and only where a block is free then. A pool with two blocks for
  // each sequence always has one.
  int64_t most_blocks(int64_t tokens, int64_t step_tokens) const {
    const int64_t all = entries(tokens);
    if (keeps_all()) return all;
    return std::min(all, blocks_for_tokens(window + kMostCutBack + step_tokens) + 1);
  }
};

}  // namespace spillway
