// SPDX-License-Identifier: Apache-2.0
#include "engine/perplexity.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/sampler.h"
#include "engine/unusable_logits.h"
#include "runtime/lone_sequence.h"

namespace spillway {

namespace {

using LogitSink = std::function<void(int64_t first, const Activations& logits)>;

// Does what forward_all() does, but leaves the logits in the device's memory.
void forward_on_device(Decoder& decoder, KvCache& kv, std::span<const TokenId> tokens,
                       int64_t first_wanted, const LogitSink& sink) {
  const auto total = static_cast<int64_t>(tokens.size());
  LoneSequence sequence(kv, decoder, total);
  for (int64_t start = 0, count = 0; start < total; start += count) {
    count = std::min<int64_t>(decoder.max_tokens(), total - start);
    // Sparse attention is only for generated tokens, one at a time, so scored tokens are computed
    // like these.
    if (decoder.attention_topk() > 0)
      count = start < first_wanted ? std::min(count, first_wanted - start) : 1;
    const int64_t wanted = std::clamp<int64_t>(start + count - first_wanted, 0, count);
    StepSequence part = sequence.part(
        tokens.subspan(static_cast<size_t>(start), static_cast<size_t>(count)), start, wanted);
    part.generates = decoder.attention_topk() > 0 && wanted > 0;
    const Activations logits = decoder.step(kv, {&part, 1});
    if (wanted > 0) sink(start + count - wanted, logits);
  }
}

// Scores tokens[first_wanted + 1] and those after it, each given all tokens before it:
// sink(position of the token, its score).
void score_tokens(Decoder& decoder, KvCache& kv, std::span<const TokenId> tokens,
                  int64_t first_wanted,
                  const std::function<void(int64_t position, const TokenScore& score)>& sink) {
  std::vector<TokenScore> scores;
  // The last token's own logits are of no use: no token follows it.
  forward_on_device(decoder, kv, tokens.first(tokens.size() - 1), first_wanted,
                    [&](int64_t first, const Activations& logits) {
                      scores.resize(static_cast<size_t>(logits.rows));
                      decoder.device().ops().score(
                          logits, tokens.subspan(static_cast<size_t>(first) + 1, scores.size()),
                          scores);
                      for (size_t i = 0; i < scores.size(); ++i)
                        sink(first + 1 + static_cast<int64_t>(i), scores[i]);
                    });
}

}  // namespace

void forward_all(Decoder& decoder, KvCache& kv, std::span<const TokenId> tokens,
                 int64_t first_wanted, const LogitSink& sink) {
  std::vector<float> copied;  // logits, where the host cannot read the device's memory
  forward_on_device(decoder, kv, tokens, first_wanted, [&](int64_t first, Activations logits) {
    if (Device& device = decoder.device(); !device.host_visible()) {
      copied.resize(static_cast<size_t>(logits.rows * logits.stride));
      auto* const host = reinterpret_cast<std::byte*>(copied.data());
      device.copy_to_host(host, logits.data, copied.size() * sizeof(float));
      logits.data = host;
    }
    sink(first, logits);
  });
}

PerplexityResult perplexity(Decoder& decoder, KvCache& kv, std::span<const TokenId> tokens,
                            const PerplexityOptions& options) {
  const int64_t context = options.context;
  SPW_CHECK(context >= 4 && context <= decoder.spec().max_context, kInvalidArgument,
            "a window of {} tokens; give 4 to {} (the model's context)", context,
            decoder.spec().max_context);
  int64_t windows = static_cast<int64_t>(tokens.size()) / context;
  SPW_CHECK(windows > 0, kInvalidArgument,
            "the text has {} tokens, fewer than one window of {}; give a longer text",
            tokens.size(), context);
  if (options.max_windows > 0) windows = std::min(windows, options.max_windows);

  const int64_t first = context / 2;  // logits from here on are scored against the token after
  double sum = 0, squares = 0;
  PerplexityResult result;
  std::vector<TokenId> window(static_cast<size_t>(context));
  for (int64_t w = 0; w < windows; ++w) {
    SPW_CHECK(options.cancel == nullptr || !options.cancel->load(), kCancelled,
              "stopped after {} of {} windows", w, windows);
    std::copy_n(tokens.begin() + w * context, context, window.begin());
    if (options.bos) window[0] = *options.bos;
    score_tokens(decoder, kv, window, first, [&](int64_t position, const TokenScore& score) {
      const double loss = -double{score.logprob};
      SPW_CHECK(std::isfinite(loss), kInternal, "window {}, token {}: {}", w, position - 1,
                explain_unusable_logits(decoder, kv.shape().type));
      sum += loss;
      squares += loss * loss;
      ++result.tokens;
    });
    result.windows = w + 1;
    if (options.progress)
      options.progress(w + 1, windows, std::exp(sum / static_cast<double>(result.tokens)));
  }
  const auto count = static_cast<double>(result.tokens);
  const double mean = sum / count;
  result.perplexity = std::exp(mean);
  if (count > 1) {
    const double variance = std::max(0.0, squares / count - mean * mean);
    result.standard_error = result.perplexity * std::sqrt(variance / (count - 1));
  }
  return result;
}

TargetScore score_target(Decoder& decoder, KvCache& kv, std::span<const TokenId> context,
                         std::span<const TokenId> target) {
  SPW_CHECK(!context.empty() && !target.empty(), kInvalidArgument,
            "an empty passage or word cannot be scored");
  std::vector<TokenId> all(context.begin(), context.end());
  all.insert(all.end(), target.begin(), target.end());
  TargetScore sum{true, 0};
  score_tokens(decoder, kv, all, static_cast<int64_t>(context.size()) - 1,
               [&](int64_t position, const TokenScore& score) {
                 SPW_CHECK(std::isfinite(score.logprob), kInternal, "{}",
                           explain_unusable_logits(decoder, kv.shape().type));
                 const bool is_best = score.best == all[static_cast<size_t>(position)];
                 sum.greedy_matches = sum.greedy_matches && is_best;
                 sum.logprob += score.logprob;
               });
  return sum;
}

}  // namespace spillway
