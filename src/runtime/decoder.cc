// SPDX-License-Identifier: Apache-2.0
#include "runtime/decoder.h"

#include <cmath>

#include "base/error.h"

namespace spillway {

Decoder::Decoder(Device& device, const ModelSpec& spec, const ModelWeights& weights, int max_tokens)
    : device_(device), ops_(device.ops()), spec_(spec), weights_(weights), max_tokens_(max_tokens) {
  SPW_CHECK(spec.executable, kUnsupported,
            "{} is known as a shape for planning only; it cannot be run", spec.name);
  SPW_CHECK(max_tokens > 0, kInvalidArgument, "a step of {} tokens does nothing", max_tokens);
  const auto buffer = [&](int64_t cols) {
    return device.allocate(
        static_cast<size_t>(row_bytes(DType::kF32, cols)) * static_cast<size_t>(max_tokens),
        MemoryTag::kActivations);
  };
  x_ = buffer(spec.hidden);
  normed_ = buffer(spec.hidden);
  if (spec.embedding_dim != spec.hidden) embedded_ = buffer(spec.embedding_dim);
  if (spec.position == PositionKind::kRope) angles_ = buffer(spec.rope.dims);
  qkv_ = buffer(spec.q_dim() + 2 * spec.kv_dim());
  attended_ = buffer(spec.q_dim());
  mlp_ = buffer(spec.gated_mlp ? 2 * spec.ffn : spec.ffn);
}

Activations Decoder::take(Buffer& buffer, int64_t rows, int64_t cols) {
  const auto bytes = static_cast<size_t>(row_bytes(DType::kF32, rows * cols));
  if (buffer.bytes() < bytes) {
    buffer = Buffer();  // give the old one back first
    buffer = device_.allocate(bytes, MemoryTag::kActivations);
  }
  return {DType::kF32, rows, cols, cols, buffer.data()};
}

void Decoder::plan_step(const KvCache& kv, std::span<const StepSequence> sequences) {
  ids_.clear();
  positions_.clear();
  table_rows_.clear();
  logit_rows_.clear();
  spans_.clear();
  for (const StepSequence& sequence : sequences) {
    const auto count = static_cast<int64_t>(sequence.tokens.size());
    const int64_t end = sequence.start + count;
    SPW_CHECK(count > 0 && sequence.start >= 0, kInvalidArgument,
              "a sequence with {} tokens at position {} in a step", count, sequence.start);
    SPW_CHECK(end <= spec_.max_context, kInvalidArgument,
              "position {} is past the model's context of {} tokens", end - 1, spec_.max_context);
    SPW_CHECK(static_cast<int64_t>(ids_.size()) + count <= max_tokens_, kInvalidArgument,
              "a step of more than {} tokens", max_tokens_);
    SPW_ASSERT(static_cast<int64_t>(sequence.block_table.size()) * kKvBlockTokens >= end);
    SPW_ASSERT(sequence.logit_rows >= 0 && sequence.logit_rows <= count);
    for (const int32_t block : sequence.block_table) SPW_ASSERT(block >= 0 && block < kv.blocks());

    const auto first = static_cast<int32_t>(ids_.size());
    for (int64_t i = 0; i < count; ++i) {
      const int32_t id = sequence.tokens[static_cast<size_t>(i)];
      SPW_CHECK(id >= 0 && id < spec_.vocab_size, kInvalidArgument,
                "token id {} is outside the vocabulary of {} tokens", id, spec_.vocab_size);
      ids_.push_back(id);
      positions_.push_back(sequence.start + static_cast<int32_t>(i));
      table_rows_.push_back(positions_.back() + spec_.position_offset);
      if (i >= count - sequence.logit_rows) logit_rows_.push_back(first + static_cast<int32_t>(i));
    }
    spans_.push_back({first, static_cast<int32_t>(count), sequence.start, sequence.block_table});
  }
  tokens_ = static_cast<int>(ids_.size());
}

Activations Decoder::step(KvCache& kv, std::span<const StepSequence> sequences) {
  SPW_ASSERT(kv.shape().layers == spec_.layers && kv.shape().kv_heads == spec_.kv_heads &&
             kv.shape().head_dim == spec_.head_dim);
  plan_step(kv, sequences);
  if (tokens_ == 0) return {};
  embed();
  for (int i = 0; i < spec_.layers; ++i) layer(i, kv.layer(i));
  return logits();
}

void Decoder::embed() {
  const Activations x = take(x_, tokens_, spec_.hidden);
  if (weights_.project_in.empty()) {
    ops_.embed(weights_.token_embedding, ids_, x, LinearMode::kStore);
  } else {
    const Activations narrow = take(embedded_, tokens_, spec_.embedding_dim);
    ops_.embed(weights_.token_embedding, ids_, narrow, LinearMode::kStore);
    ops_.linear(weights_.project_in, {}, narrow, x, LinearMode::kStore);
  }
  if (spec_.position == PositionKind::kLearned) {
    ops_.embed(weights_.position_embedding, table_rows_, x, LinearMode::kAccumulate);
  } else {
    ops_.rope_angles(positions_, spec_.rope.inverse_frequencies, 1.0F,
                     take(angles_, tokens_, spec_.rope.dims));
  }
}

void Decoder::layer(int index, const KvLayerView& kv) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  const Activations x = take(x_, tokens_, spec_.hidden);
  if (spec_.norm_place == NormPlace::kPre) {
    const Activations normed = take(normed_, tokens_, spec_.hidden);
    norm(w.attention_norm, x, normed);
    attention_block(w, kv, normed);
    norm(w.mlp_norm, x, normed);
    mlp_block(w, normed);
  } else {
    attention_block(w, kv, x);
    norm(w.attention_norm, x, x);
    mlp_block(w, x);
    norm(w.mlp_norm, x, x);
  }
}

// x += out(attention(input))
void Decoder::attention_block(const LayerWeights& w, const KvLayerView& kv,
                              const Activations& input) {
  const Activations qkv = take(qkv_, tokens_, spec_.q_dim() + 2 * spec_.kv_dim());
  const Activations q = qkv.columns(0, spec_.q_dim());
  const Activations k = qkv.columns(spec_.q_dim(), spec_.kv_dim());
  const Activations v = qkv.columns(spec_.q_dim() + spec_.kv_dim(), spec_.kv_dim());
  linear(w.query, input, q);
  linear(w.key, input, k);
  linear(w.value, input, v);
  if (spec_.position == PositionKind::kRope) {
    const Activations angles = take(angles_, tokens_, spec_.rope.dims);
    ops_.rope(q, spec_.head_dim, angles, spec_.rope.style);
    ops_.rope(k, spec_.head_dim, angles, spec_.rope.style);
  }
  ops_.kv_append(k, v, kv, spans_);

  const Activations attended = take(attended_, tokens_, spec_.q_dim());
  const AttentionParams params{spec_.heads, 1.0F / std::sqrt(static_cast<float>(spec_.head_dim)),
                               spec_.sliding_window};
  ops_.attention(q, kv, spans_, params, attended);
  linear(w.attention_out, attended, take(x_, tokens_, spec_.hidden), LinearMode::kAccumulate);
}

// x += down(f(up(input))), gated or not
void Decoder::mlp_block(const LayerWeights& w, const Activations& input) {
  const Activations all = take(mlp_, tokens_, spec_.gated_mlp ? 2 * spec_.ffn : spec_.ffn);
  const Activations up = all.columns(0, spec_.ffn);
  linear(w.up, input, up);
  if (spec_.gated_mlp) {
    const Activations gate = all.columns(spec_.ffn, spec_.ffn);
    linear(w.gate, input, gate);
    ops_.gated_activate(spec_.activation, gate, up, up);
  } else {
    ops_.activate(spec_.activation, up);
  }
  linear(w.down, up, take(x_, tokens_, spec_.hidden), LinearMode::kAccumulate);
}

Activations Decoder::logits() {
  const auto rows = static_cast<int64_t>(logit_rows_.size());
  if (rows == 0) return {};
  Activations input = take(head_rows_, rows, spec_.hidden);
  ops_.gather_rows(take(x_, tokens_, spec_.hidden), logit_rows_, input);
  if (spec_.final_norm) norm(weights_.final_norm, input, input);
  if (!weights_.project_out.empty()) {
    const Activations narrow = take(embedded_, rows, spec_.embedding_dim);
    ops_.linear(weights_.project_out, {}, input, narrow, LinearMode::kStore);
    input = narrow;
  }
  const Activations out = take(logits_, rows, spec_.vocab_size);
  ops_.linear(weights_.head, {}, input, out, LinearMode::kStore);
  device_.synchronize();
  return out;
}

void Decoder::norm(const NormWeights& w, const Activations& x, const Activations& out) {
  ops_.norm(spec_.norm, x, w.weight, w.bias, spec_.norm_eps, out);
}

void Decoder::linear(const LinearWeights& w, const Activations& x, const Activations& out,
                     LinearMode mode) {
  ops_.linear(w.weight, w.bias, x, out, mode);
}

}  // namespace spillway
