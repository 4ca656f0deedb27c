// SPDX-License-Identifier: Apache-2.0
#include "runtime/decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace spillway {

Decoder::Decoder(Device& device, const ModelSpec& spec, const ModelWeights& weights, int max_tokens)
    : device_(device),
      ops_(device.ops()),
      spec_(spec),
      weights_(weights),
      max_tokens_(max_tokens),
      inner_type_(device.activation_type(weights.layers.empty()
                                             ? weights.token_embedding.dtype
                                             : weights.layers.front().query.weight.dtype)) {
  SPW_CHECK(spec.executable, kUnsupported,
            "{} is known as a shape for planning only; it cannot be run", spec.name);
  SPW_CHECK(max_tokens > 0, kInvalidArgument, "a step of {} tokens does nothing", max_tokens);
  const auto buffer = [&](DType type, int64_t cols) {
    return device.allocate(
        static_cast<size_t>(row_bytes(type, cols)) * static_cast<size_t>(max_tokens),
        MemoryTag::kActivations);
  };
  x_ = buffer(DType::kF32, spec.hidden);
  normed_ = buffer(inner_type_, spec.hidden);
  if (spec.embedding_dim != spec.hidden) embedded_ = buffer(inner_type_, spec.embedding_dim);
  if (spec.position == PositionKind::kRope) angles_ = buffer(DType::kF32, spec.rope.dims);
  qkv_ = buffer(inner_type_, spec.q_dim() + 2 * spec.kv_dim());
  attended_ = buffer(inner_type_, spec.q_dim());
  mlp_ = buffer(inner_type_, spec.gated_mlp ? 2 * spec.ffn : spec.ffn);
  ops_.prepare({max_tokens, std::max({spec.hidden, spec.q_dim(), spec.ffn}),
                std::max(spec.vocab_size * spec.embedding_dim, spec.hidden * spec.ffn)});
}

Activations Decoder::take(Buffer& buffer, DType type, int64_t rows, int64_t cols) {
  const auto bytes = static_cast<size_t>(row_bytes(type, rows * cols));
  if (buffer.bytes() < bytes) {
    buffer = Buffer();  // give the old one back first
    buffer = device_.allocate(bytes, MemoryTag::kActivations);
    ++allocations_;
  }
  return {type, rows, cols, cols, buffer.data()};
}

Activations Decoder::residual(Buffer& buffer, int64_t rows, int64_t cols) {
  return take(buffer, DType::kF32, rows, cols);
}

Activations Decoder::inner(Buffer& buffer, int64_t rows, int64_t cols) {
  return take(buffer, inner_type_, rows, cols);
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

// The addresses of everything that a step touches.
uint64_t Decoder::program(const KvCache& kv) const {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  const auto mix_address = [&](const void* at) { mix(reinterpret_cast<uintptr_t>(at)); };
  for (int i = 0; i < spec_.layers; ++i) {
    const KvLayerView layer = kv.layer(i);
    mix_address(layer.k);
    mix_address(layer.v);
    mix_address(weights_.layers[static_cast<size_t>(i)].query.weight.data);
  }
  for (const Buffer* buffer : {&x_, &normed_, &embedded_, &angles_, &qkv_, &attended_, &mlp_,
                               &head_rows_, &head_input_, &logits_}) {
    mix_address(buffer->data());
  }
  mix_address(weights_.head.data);
  mix(allocations_);
  mix(static_cast<uint64_t>(kv.blocks()));
  mix(static_cast<uint64_t>(kv.shape().type));
  mix(std::bit_cast<uint32_t>(attention_topk_));
  return hash;
}

AttentionParams Decoder::attention_params() const {
  return {spec_.heads, 1.0F / std::sqrt(static_cast<float>(spec_.head_dim)), spec_.sliding_window,
          attention_topk_};
}

Activations Decoder::step(KvCache& kv, std::span<const StepSequence> sequences) {
  SPW_ASSERT(kv.shape().layers == spec_.layers && kv.shape().kv_heads == spec_.kv_heads &&
             kv.shape().head_dim == spec_.head_dim);
  plan_step(kv, sequences);
  if (tokens_ == 0) return {};
  // Everything that grows, before the program is known.
  const auto logit_rows = static_cast<int64_t>(logit_rows_.size());
  if (logit_rows > 0) {
    residual(head_rows_, logit_rows, spec_.hidden);
    inner(head_input_, logit_rows, spec_.hidden);
    residual(logits_, logit_rows, spec_.vocab_size);
  }
  const StepBatch batch{ids_, positions_, table_rows_, logit_rows_, spans_, program(kv)};
  ops_.run_step(batch, [&] {
    embed();
    for (int i = 0; i < spec_.layers; ++i) layer(i, kv.layer(i));
    if (logit_rows > 0) logits();
  });
  traffic_.add(spans_, kv.layer(0), attention_params(), spec_.layers);
  if (logit_rows == 0) return {};
  if (device_.host_visible()) device_.synchronize();
  return residual(logits_, logit_rows, spec_.vocab_size);
}

void Decoder::embed() {
  const Activations x = residual(x_, tokens_, spec_.hidden);
  if (weights_.project_in.empty()) {
    ops_.embed(weights_.token_embedding, ids_, x, LinearMode::kStore);
  } else {
    const Activations narrow = inner(embedded_, tokens_, spec_.embedding_dim);
    ops_.embed(weights_.token_embedding, ids_, narrow, LinearMode::kStore);
    ops_.linear(weights_.project_in, {}, narrow, x, LinearMode::kStore);
  }
  if (spec_.position == PositionKind::kLearned) {
    ops_.embed(weights_.position_embedding, table_rows_, x, LinearMode::kAccumulate);
  } else {
    ops_.rope_angles(positions_, spec_.rope.inverse_frequencies, 1.0F,
                     residual(angles_, tokens_, spec_.rope.dims));
  }
}

void Decoder::layer(int index, const KvLayerView& kv) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  const Activations x = residual(x_, tokens_, spec_.hidden);
  if (spec_.norm_place == NormPlace::kPre) {
    const Activations normed = inner(normed_, tokens_, spec_.hidden);
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
  const Activations qkv = inner(qkv_, tokens_, spec_.q_dim() + 2 * spec_.kv_dim());
  const Activations q = qkv.columns(0, spec_.q_dim());
  const Activations k = qkv.columns(spec_.q_dim(), spec_.kv_dim());
  const Activations v = qkv.columns(spec_.q_dim() + spec_.kv_dim(), spec_.kv_dim());
  const Projection parts[] = {{w.query.weight, w.query.bias, q},
                              {w.key.weight, w.key.bias, k},
                              {w.value.weight, w.value.bias, v}};
  ops_.linears(parts, input);
  const bool rotated = spec_.position == PositionKind::kRope;
  ops_.rope_and_append(q, k, v,
                       rotated ? residual(angles_, tokens_, spec_.rope.dims) : Activations{},
                       spec_.rope.style, kv, spans_);

  const Activations attended = inner(attended_, tokens_, spec_.q_dim());
  const AttentionParams params = attention_params();
  if (observer_) observer_(q, kv, spans_, params);
  ops_.attention(q, kv, spans_, params, attended);
  linear(w.attention_out, attended, residual(x_, tokens_, spec_.hidden), LinearMode::kAccumulate);
}

// x += down(f(up(input))), gated or not
void Decoder::mlp_block(const LayerWeights& w, const Activations& input) {
  const Activations all = inner(mlp_, tokens_, spec_.gated_mlp ? 2 * spec_.ffn : spec_.ffn);
  const Projection up{w.up.weight, w.up.bias, all.columns(0, spec_.ffn)};
  if (spec_.gated_mlp) {
    const Projection gate{w.gate.weight, w.gate.bias, all.columns(spec_.ffn, spec_.ffn)};
    ops_.gated_linear(spec_.activation, gate, up, input);
  } else {
    ops_.activated_linear(spec_.activation, up, input);
  }
  linear(w.down, up.out, residual(x_, tokens_, spec_.hidden), LinearMode::kAccumulate);
}

void Decoder::logits() {
  const auto rows = static_cast<int64_t>(logit_rows_.size());
  Activations input = inner(head_input_, rows, spec_.hidden);
  const Activations x = residual(x_, tokens_, spec_.hidden);
  if (spec_.final_norm) {
    const Activations wanted = residual(head_rows_, rows, spec_.hidden);
    ops_.gather_rows(x, logit_rows_, wanted);
    norm(weights_.final_norm, wanted, input);
  } else {
    ops_.gather_rows(x, logit_rows_, input);
  }
  if (!weights_.project_out.empty()) {
    const Activations narrow = inner(embedded_, rows, spec_.embedding_dim);
    ops_.linear(weights_.project_out, {}, input, narrow, LinearMode::kStore);
    input = narrow;
  }
  ops_.linear(weights_.head, {}, input, residual(logits_, rows, spec_.vocab_size),
              LinearMode::kStore);
}

void Decoder::norm(const NormWeights& w, const Activations& x, const Activations& out) {
  ops_.norm(spec_.norm, x, w.weight, w.bias, spec_.norm_eps, out);
}

void Decoder::linear(const LinearWeights& w, const Activations& x, const Activations& out,
                     LinearMode mode) {
  ops_.linear(w.weight, w.bias, x, out, mode);
}

}  // namespace spillway
