// SPDX-License-Identifier: Apache-2.0
// Measures how well a model predicts a text: perplexity over windows, and the last word of
// passages.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "runtime/decoder.h"
#include "text/vocabulary.h"

namespace spillway {

struct PerplexityResult {
  double perplexity = 0;
  double standard_error = 0;  // of the perplexity
  int64_t tokens = 0;         // scored
  int64_t windows = 0;
};

struct PerplexityOptions {
  int context = 512;           // tokens in a window, at least 4
  std::optional<TokenId> bos;  // replaces the first token of each window
  int64_t max_windows = 0;     // 0 = all
  std::function<void(int64_t done, int64_t total, double perplexity_so_far)> progress;
  const std::atomic<bool>* cancel =
      nullptr;  // set to true: throws kCancelled after the window at hand
};

// Scores non-overlapping windows of `context` tokens; in each the second half is scored, so every
// scored token has at least half a window before it. This is what llama.cpp's perplexity tool does,
// so figures compare. What is left after the last whole window is left out. Throws kInvalidArgument
// for a text shorter than one window.
PerplexityResult perplexity(Decoder& decoder, KvCache& kv, std::span<const TokenId> tokens,
                            const PerplexityOptions& options);

// Says whether the model's greedy choice for each token of `target` is right, given `context`
// before it, and the logarithm of the probability of `target`.
struct TargetScore {
  bool greedy_matches = false;
  double logprob = 0;
};
TargetScore score_target(Decoder& decoder, KvCache& kv, std::span<const TokenId> context,
                         std::span<const TokenId> target);

// Computes the logits of every position of `tokens` from `first_wanted` on, in chunks that fit a
// step, and passes them on: sink(first position, logits [rows, vocab]). With sparse attention these
// positions are computed one at a time, as in generation, so that its effect shows.
void forward_all(Decoder& decoder, KvCache& kv, std::span<const TokenId> tokens,
                 int64_t first_wanted,
                 const std::function<void(int64_t first, const Activations& logits)>& sink);

}  // namespace spillway
