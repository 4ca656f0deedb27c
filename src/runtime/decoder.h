// SPDX-License-Identifier: Apache-2.0
// Runs a decoder-only network over a batch of sequences, whatever its family: everything differs
// only in the spec.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/sparse_attention.h"
#include "kv/kv_cache.h"
#include "model/model_spec.h"
#include "runtime/model_weights.h"

namespace spillway {

// One sequence's part of a step: some of its prompt, or its last token. Linear layers see the
// tokens of all sequences together, attention sees each sequence (selective batching).
struct StepSequence {
  std::span<const int32_t> tokens;       // at positions [start, start + tokens.size())
  int32_t start = 0;                     // tokens already in the KV cache
  std::span<const int32_t> block_table;  // covers start + tokens.size() tokens
  int32_t logit_rows = 1;  // logits wanted for this many of the last tokens; 0 inside a prompt
};

// Owns the activation buffers of a step. One step at a time. The device, weights and spec must
// outlive it.
class Decoder {
 public:
  // A step has at most `max_tokens` tokens.
  Decoder(Device& device, const ModelSpec& spec, const ModelWeights& weights, int max_tokens);

  const ModelSpec& spec() const { return spec_; }
  int max_tokens() const { return max_tokens_; }
  Device& device() const { return device_; }

  // Called in every layer of a step with what its attention is about to read (q rotated, K and V
  // appended): for measurements. Only for steps with prompts, which are never replayed.
  using AttentionObserver =
      std::function<void(const Activations& q, const KvLayerView& kv,
                         std::span<const SequenceSpan> spans, const AttentionParams& params)>;
  void observe_attention(AttentionObserver observer) { observer_ = std::move(observer); }

  // Rows that generate attend to this share of their context (AttentionParams::top_k); 0 = all.
  void set_attention_topk(float share) { attention_topk_ = share; }
  float attention_topk() const { return attention_topk_; }
  // Of all steps so far.
  const AttentionTraffic& attention_traffic() const { return traffic_; }

  // Computes the step, appends K and V to the cache, and returns logits [sum of logit_rows, vocab],
  // F32, in the device's memory, in order of the sequences, valid until the next step. Throws
  // kInvalidArgument for a token outside the vocabulary, a position outside the context, or too
  // many tokens; the cache is then as it was.
  Activations step(KvCache& kv, std::span<const StepSequence> sequences);

 private:
  void plan_step(const KvCache& kv, std::span<const StepSequence> sequences);
  uint64_t program(const KvCache& kv) const;
  AttentionParams attention_params() const;
  void embed();
  void layer(int index, const KvLayerView& kv);
  void attention_block(const LayerWeights& w, const KvLayerView& kv, const Activations& input);
  void mlp_block(const LayerWeights& w, const Activations& input);
  void logits();
  void norm(const NormWeights& w, const Activations& x, const Activations& out);
  void linear(const LinearWeights& w, const Activations& x, const Activations& out,
              LinearMode mode = LinearMode::kStore);
  // The first `rows` rows of a buffer: of the residual stream's kind, or of what matrices take.
  Activations residual(Buffer& buffer, int64_t rows, int64_t cols);
  Activations inner(Buffer& buffer, int64_t rows, int64_t cols);
  Activations take(Buffer& buffer, DType type, int64_t rows, int64_t cols);

  Device& device_;
  Ops& ops_;
  const ModelSpec& spec_;
  const ModelWeights& weights_;
  int max_tokens_;
  DType inner_type_;          // of activations between matrices
  uint64_t allocations_ = 0;  // so far: whether recorded steps still know where things are

  AttentionObserver observer_;
  float attention_topk_ = 0;
  AttentionTraffic traffic_;

  // The step at hand.
  int tokens_ = 0;
  std::vector<int32_t> ids_, positions_;  // [tokens]
  std::vector<int32_t> table_rows_;       // positions + offset, for the learned table
  std::vector<int32_t> logit_rows_;       // rows whose logits are wanted
  std::vector<SequenceSpan> spans_;

  Buffer x_;         // [tokens, hidden], the residual stream
  Buffer normed_;    // [tokens, hidden]
  Buffer embedded_;  // [tokens, embedding_dim], where it differs from hidden; also the head's input
  Buffer angles_;    // [tokens, rope.dims]
  Buffer qkv_;       // [tokens, q_dim + 2 kv_dim]
  Buffer attended_;  // [tokens, q_dim]
  Buffer mlp_;       // [tokens, ffn or 2 ffn]
  Buffer head_rows_;   // [logit rows, hidden], from the residual stream
  Buffer head_input_;  // [logit rows, hidden]
  Buffer logits_;      // [logit rows, vocab]; grows on demand
};

}  // namespace spillway
