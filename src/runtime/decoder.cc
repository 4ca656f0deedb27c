// SPDX-License-Identifier: Apache-2.0
#include "runtime/decoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace spillway {

Decoder::Decoder(Device& device, const ModelSpec& spec, const ModelWeights& weights, int max_tokens)
    : Decoder(device, spec, weights, DecoderOptions{.max_tokens = max_tokens}) {}

Decoder::Decoder(Device& device, const ModelSpec& spec, const ModelWeights& weights,
                 const DecoderOptions& options)
    : device_(device),
      ops_(device.ops()),
      spec_(spec),
      weights_(weights),
      options_(options),
      inner_type_(device.activation_type(weights.matrix_type())),
      matrices_(weights.matrix_facts()),
      layer_types_(weights.layer_types()),
      stalls_(std::make_unique<StallClock>(device)) {
  SPW_CHECK(spec.executable, kUnsupported,
            "{} is known as a shape for planning only; it cannot be run", spec.name);
  SPW_CHECK(options.max_tokens > 0, kInvalidArgument, "a step of {} tokens does nothing",
            options.max_tokens);
  SPW_ASSERT(weights.streamed.empty() || options.stream != nullptr);
  if (options_.micro_tokens <= 0) options_.micro_tokens = options_.max_tokens;
  options_.micro_tokens = std::min(options_.micro_tokens, options_.max_tokens);
  const int of_step = options_.max_tokens, of_batch = options_.micro_tokens;
  x_ = std::make_unique<ResidualStore>(
      device, options_.host == nullptr ? device : *options_.host,
      ResidualStoreOptions{
          .sizes = residual_sizes(options_.activations, of_step, of_batch, spec.hidden),
          .overlap = options_.overlap,
          .queue = options_.queue,
          .disk_dir = options_.disk_dir,
          .disk_budget = options_.disk_budget});
  const DecoderBuffers bytes = decoder_buffers(spec, inner_type_, of_step, of_batch, 0);
  const auto make = [&](Buffer& buffer, uint64_t size) {
    if (size > 0) buffer = device.allocate(size, MemoryTag::kActivations);
  };
  make(normed_, bytes.normed);
  make(embedded_, bytes.embedded);
  make(angles_, bytes.angles);
  make(qkv_, bytes.qkv);
  make(attended_, bytes.attended);
  make(mlp_, bytes.mlp);
  ops_.prepare({of_batch, std::max({spec.hidden, spec.q_dim(), spec.ffn}),
                std::max(spec.vocab_size * spec.embedding_dim, spec.hidden * spec.ffn)});
}

Activations Decoder::take(Buffer& buffer, DType type, int64_t rows, int64_t cols) {
  const auto bytes = static_cast<size_t>(row_bytes(type, rows * cols));
  if (buffer.bytes() < bytes) {
    generation_.renew();
    buffer = Buffer();  // give the old one back first
    buffer = device_.allocate(bytes, MemoryTag::kActivations);
  }
  return {type, rows, cols, cols, buffer.data()};
}

Activations Decoder::residual(Buffer& buffer, int64_t rows, int64_t cols) {
  return take(buffer, DType::kF32, rows, cols);
}

Activations Decoder::inner(Buffer& buffer, int64_t rows, int64_t cols) {
  return take(buffer, inner_type_, rows, cols);
}

void Decoder::check_step(const KvCache& kv, std::span<const StepSequence> sequences) const {
  SPW_ASSERT(kv.shape().layers == spec_.layers && kv.shape().kv_heads == spec_.kv_heads &&
             kv.shape().head_dim == spec_.head_dim);
  int64_t tokens = 0;
  for (const StepSequence& sequence : sequences) {
    const auto count = static_cast<int64_t>(sequence.tokens.size());
    const int64_t end = sequence.start + count;
    SPW_CHECK(count > 0 && sequence.start >= 0, kInvalidArgument,
              "a sequence with {} tokens at position {} in a step", count, sequence.start);
    SPW_CHECK(end <= spec_.max_context, kInvalidArgument,
              "position {} is past the model's context of {} tokens", end - 1, spec_.max_context);
    tokens += count;
    SPW_CHECK(tokens <= options_.max_tokens, kInvalidArgument, "a step of more than {} tokens",
              options_.max_tokens);
    SPW_ASSERT(static_cast<int64_t>(sequence.block_table.size()) * kKvBlockTokens >= end);
    SPW_ASSERT(sequence.logit_rows >= 0 && sequence.logit_rows <= count);
    const Tier tier = kv.tier_of(sequence.block_table.front());
    SPW_ASSERT(tier == Tier::kDevice || options_.host != nullptr);
    for (const int32_t block : sequence.block_table)
      SPW_ASSERT(block >= 0 && block < kv.blocks() && kv.tier_of(block) == tier);
    for (const int32_t id : sequence.tokens) {
      SPW_CHECK(id >= 0 && id < spec_.vocab_size, kInvalidArgument,
                "token id {} is outside the vocabulary of {} tokens", id, spec_.vocab_size);
    }
  }
}

uint64_t Decoder::program(const KvCache& kv) {
  return programs_.number_of(
      {weights_.generation(), kv.generation(), generation_.number(), attention_topk_});
}

StepBatch Decoder::batch_of(const MicroBatch& batch, uint64_t program) const {
  return {
      batch.ids,        batch.positions, batch.table_rows, batch.logit_rows, batch.resident.spans,
      batch.swap_spans, program,         matrices_,        layer_types_};
}

void Decoder::attach(const KvCache& kv) {
  if (kv.host_blocks() > 0 && host_attention_ == nullptr) {
    host_attention_ =
        std::make_unique<HostAttention>(device_, *options_.host, inner_type_, options_.micro_tokens,
                                        spec_.q_dim(), spec_.kv_dim(), options_.overlap);
  }
  if (kv.host_blocks() + kv.disk_blocks() > 0 && swap_ == nullptr && options_.staging_blocks > 0) {
    swap_ = std::make_unique<KvSwap>(device_, *options_.host, kv.shape(), options_.staging_blocks,
                                     options_.overlap);
  }
}

AttentionParams Decoder::attention_params() const {
  return {spec_.heads, 1.0F / std::sqrt(static_cast<float>(spec_.head_dim)), spec_.sliding_window,
          attention_topk_};
}

// Swapped rows that attend to a share of their positions read V over the bus where that is fewer
// bytes than its pages have: each query head reads entries of its own. Quantized ones are spread
// over their page, and one takes as many sectors as all 16.
bool Decoder::values_stay(const KvCache& kv) const {
  return attention_topk_ > 0 &&
         attention_topk_ * static_cast<float>(spec_.heads) < static_cast<float>(spec_.kv_heads) &&
         !is_quantized(kv.shape().type) && kv.host_readable();
}

Activations Decoder::step(KvCache& kv, std::span<const StepSequence> sequences) {
  check_step(kv, sequences);
  if (sequences.empty()) return {};
  step_ = cut_step(kv, sequences,
                   {.tokens = options_.micro_tokens,
                    .sequences = options_.micro_sequences,
                    .staging_blocks = options_.staging_blocks,
                    .position_offset = spec_.position_offset,
                    .host_share = options_.host_share,
                    .values_stay = values_stay(kv)});
  const MicroBatch& last = step_.batches.back();
  tokens_ = last.first_row + last.tokens;
  // Everything that grows, before the program is known.
  const int64_t logit_rows = step_.logits;
  if (logit_rows > 0) {
    if (spec_.final_norm) residual(head_rows_, logit_rows, spec_.hidden);
    inner(head_input_, logit_rows, spec_.hidden);
    residual(logits_, logit_rows, spec_.vocab_size);
    if (!weights_.project_out.empty()) inner(embedded_, logit_rows, spec_.embedding_dim);
  }
  attach(kv);
  try {
    run_layers(kv);
  } catch (...) {
    // Nothing that is still queued may outlive the step's plan.
    if (host_attention_ != nullptr) host_attention_->reset();
    if (swap_ != nullptr) swap_->reset();
    x_->reset();
    throw;
  }
  for (const MicroBatch& batch : step_.batches) {
    const KvLayerView pages = kv.layer(0);
    traffic_.add(batch.resident.spans, pages, attention_params(), spec_.layers);
    traffic_.add(batch.on_host.spans, pages, attention_params(), spec_.layers);
    for (const SwapGroup& group : batch.swaps)
      traffic_.add(group.spans, pages, attention_params(), spec_.layers);
  }
  if (logit_rows == 0) return {};
  if (device_.host_visible()) device_.synchronize();
  return residual(logits_, logit_rows, spec_.vocab_size);
}

void Decoder::run_layers(KvCache& kv) {
  const std::vector<MicroBatch>& batches = step_.batches;
  next_swap_ = {};
  load_kv_ahead(kv);
  const bool wants_logits = step_.logits > 0;
  const auto layers =
      [&](const std::function<void(const MicroBatch&, int, const LayerWeights&)>& each) {
        for (int i = 0; i < spec_.layers; ++i) {
          const LayerWeights& w = options_.stream == nullptr
                                      ? weights_.layers[static_cast<size_t>(i)]
                                      : options_.stream->acquire(i, *stalls_);
          for (const MicroBatch& batch : batches) each(batch, i, w);
          if (options_.stream != nullptr) options_.stream->release(i);
        }
      };
  if (batches.size() == 1) {
    const MicroBatch& all = batches.front();
    const bool resident = options_.stream == nullptr && all.swaps.empty() &&
                          all.on_host.rows == 0 && options_.activations.device == 1 && !observer_;
    ops_.run_step(batch_of(all, resident ? program(kv) : 0), [&] {
      embed(all);
      layers(
          [&](const MicroBatch& batch, int i, const LayerWeights& w) { layer(w, i, kv, batch); });
      gather_logit_rows(all);
      if (wants_logits) logits();
    });
  } else {
    for (const MicroBatch& batch : batches)
      ops_.run_step(batch_of(batch, 0), [&] { embed(batch); });
    layers([&](const MicroBatch& batch, int i, const LayerWeights& w) {
      ops_.run_step(batch_of(batch, 0), [&] { layer(w, i, kv, batch); });
    });
    for (const MicroBatch& batch : batches)
      ops_.run_step(batch_of(batch, 0), [&] { gather_logit_rows(batch); });
    if (wants_logits) {
      StepBatch head;
      ops_.run_step(head, [&] { logits(); });
    }
  }
  // What the host has to do reads the step's plan.
  if (host_attention_ != nullptr) host_attention_->synchronize();
  if (swap_ != nullptr) swap_->synchronize();
  x_->synchronize();
}

// Queues the pages of the groups that come next, as many as there is staging for.
void Decoder::load_kv_ahead(const KvCache& kv) {
  if (swap_ == nullptr) return;
  const int ahead = options_.overlap ? kKvStagingBuffers : 1;
  auto& [layer, batch, group] = next_swap_;
  while (layer < spec_.layers && swap_->loaded() < ahead) {
    if (batch == step_.batches.size()) {
      ++layer;
      batch = group = 0;
      continue;
    }
    const std::vector<SwapGroup>& groups = step_.batches[batch].swaps;
    if (group == groups.size()) {
      ++batch;
      group = 0;
      continue;
    }
    // Pages that the group before it is about to write come when they are written.
    if (groups[group].continues && swap_->loaded() > 0) return;
    swap_->load(kv, layer, groups[group]);
    ++group;
  }
}

const MicroBatch* Decoder::after(const MicroBatch& batch, int index) const {
  const std::vector<MicroBatch>& batches = step_.batches;
  auto next = batches.begin() + (&batch - batches.data()) + 1;
  if (index < spec_.layers) {
    if (next != batches.end()) return &*next;
    next = batches.begin();
    if (index + 1 < spec_.layers) return &*next;
  }
  next = std::find_if(next, batches.end(),
                      [](const MicroBatch& other) { return !other.logit_rows.empty(); });
  return next == batches.end() ? nullptr : &*next;
}

std::optional<KvFault> Decoder::find_kv_fault() {
  if (const auto fault = ops_.take_kv_fault()) kv_fault_ = fault;
  if (options_.host != nullptr) {
    if (const auto fault = options_.host->ops().take_kv_fault()) kv_fault_ = fault;
  }
  if (host_attention_ != nullptr && host_attention_->fault()) kv_fault_ = host_attention_->fault();
  return kv_fault_;
}

DecoderStats Decoder::take_stats() {
  DecoderStats stats;
  stats.stall_s = stalls_->take();
  if (host_attention_ != nullptr) stats.host_attention = host_attention_->take_stats();
  if (swap_ != nullptr) stats.swap = swap_->take_stats();
  if (options_.stream != nullptr) stats.weights = options_.stream->take_stats();
  stats.activations = x_->take_stats();
  stats.attention = std::exchange(traffic_, {});
  return stats;
}

DecoderStats& DecoderStats::operator+=(const DecoderStats& other) {
  host_attention += other.host_attention;
  swap += other.swap;
  weights += other.weights;
  activations += other.activations;
  attention += other.attention;
  for (size_t cause = 0; cause < stall_s.size(); ++cause) stall_s[cause] += other.stall_s[cause];
  return *this;
}

Activations Decoder::angles_of(const MicroBatch& batch) {
  if (spec_.position != PositionKind::kRope) return {};
  return residual(angles_, tokens_, spec_.rope.dims).row_range(batch.first_row, batch.tokens);
}

void Decoder::embed(const MicroBatch& batch) {
  const Activations x = x_->take(batch.first_row, batch.tokens, /*fresh=*/true, *stalls_);
  if (weights_.project_in.empty()) {
    ops_.embed(weights_.token_embedding, batch.ids, x, LinearMode::kStore);
  } else {
    const Activations narrow = inner(embedded_, batch.tokens, spec_.embedding_dim);
    ops_.embed(weights_.token_embedding, batch.ids, narrow, LinearMode::kStore);
    ops_.linear(weights_.project_in, {}, narrow, x, LinearMode::kStore);
  }
  if (spec_.position == PositionKind::kLearned) {
    ops_.embed(weights_.position_embedding, batch.table_rows, x, LinearMode::kAccumulate);
  } else {
    ops_.rope_angles(batch.positions, spec_.rope.inverse_frequencies, 1.0F, angles_of(batch));
  }
  x_->put(*stalls_);
}

void Decoder::layer(const LayerWeights& w, int index, KvCache& kv, const MicroBatch& batch) {
  const Activations x = x_->take(batch.first_row, batch.tokens, /*fresh=*/false, *stalls_);
  const MicroBatch* const next = after(batch, index);
  // With one micro-batch the rows that come next are these.
  if (next != nullptr && next != &batch) x_->expect(next->first_row, next->tokens, *stalls_);
  if (spec_.norm_place == NormPlace::kPre) {
    const Activations normed = inner(normed_, batch.tokens, spec_.hidden);
    norm(w.attention_norm, x, normed);
    attention_block(w, index, kv, batch, x, normed);
    norm(w.mlp_norm, x, normed);
    mlp_block(w, batch, x, normed);
  } else {
    attention_block(w, index, kv, batch, x, x);
    norm(w.attention_norm, x, x);
    mlp_block(w, batch, x, x);
    norm(w.mlp_norm, x, x);
  }
  if (index + 1 == spec_.layers && batch.logit_rows.empty()) {
    x_->release();
  } else {
    x_->put(*stalls_);
  }
}

// x += out(attention(input))
void Decoder::attention_block(const LayerWeights& w, int index, KvCache& kv,
                              const MicroBatch& batch, const Activations& x,
                              const Activations& input) {
  const Activations qkv = inner(qkv_, batch.tokens, spec_.q_dim() + 2 * spec_.kv_dim());
  const Projection parts[] = {
      {w.query.weight, w.query.bias, qkv.columns(0, spec_.q_dim())},
      {w.key.weight, w.key.bias, qkv.columns(spec_.q_dim(), spec_.kv_dim())},
      {w.value.weight, w.value.bias, qkv.columns(spec_.q_dim() + spec_.kv_dim(), spec_.kv_dim())}};
  const Activations attended = inner(attended_, batch.tokens, spec_.q_dim());
  if (batch.on_host.rows == 0 && batch.swaps.empty()) {
    const Activations& q = parts[0].out;
    const KvLayerView view = kv.layer(index);
    const std::span<const SequenceSpan> spans = batch.resident.spans;
    ops_.project_and_append(parts[0], parts[1], parts[2], input, angles_of(batch), spec_.rope.style,
                            view, spans);
    if (observer_) observer_(q, view, spans, attention_params());
    ops_.attention(q, view, spans, attention_params(), attended);
  } else {
    ops_.linears(parts, input);
    attend(index, kv, batch, qkv, attended);
  }
  linear(w.attention_out, attended, x, LinearMode::kAccumulate);
}

// Of sequences whose KV is in several places. The host's rows first: it works on them while the
// device attends to its own.
void Decoder::attend(int index, KvCache& kv, const MicroBatch& batch, const Activations& qkv,
                     const Activations& attended) {
  const AttentionParams params = attention_params();
  const Activations angles = angles_of(batch);
  struct Rows {
    Activations all, q, k, v, angles, out;
  };
  const auto rows_on = [&](const PathRows& path) {
    const Activations rows = qkv.row_range(path.first_row, path.rows);
    return Rows{rows,
                rows.columns(0, spec_.q_dim()),
                rows.columns(spec_.q_dim(), spec_.kv_dim()),
                rows.columns(spec_.q_dim() + spec_.kv_dim(), spec_.kv_dim()),
                angles.empty() ? angles : angles.row_range(path.first_row, path.rows),
                attended.row_range(path.first_row, path.rows)};
  };
  const auto on_device = [&](const PathRows& path, const KvLayerView& view) {
    const Rows rows = rows_on(path);
    ops_.rope_and_append(rows.q, rows.k, rows.v, rows.angles, spec_.rope.style, view, path.spans);
    if (observer_) observer_(rows.q, view, path.spans, params);
    ops_.attention(rows.q, view, path.spans, params, rows.out);
  };
  const PathRows &resident = batch.resident, &on_host = batch.on_host;
  if (on_host.rows > 0) {
    const Rows rows = rows_on(on_host);
    if (!rows.angles.empty()) {
      ops_.rope(rows.q, spec_.head_dim, rows.angles, spec_.rope.style);
      ops_.rope(rows.k, spec_.head_dim, rows.angles, spec_.rope.style);
    }
    host_attention_->start(rows.all, kv.host_layer(index), on_host.spans, params, rows.out,
                           swap_.get());
  }
  if (resident.rows > 0) on_device(resident, kv.layer(index));
  for (const SwapGroup& group : batch.swaps) {
    on_device(group, swap_->begin(kv, index, group, params, *stalls_));
    swap_->end(kv, index, group, *stalls_);
    load_kv_ahead(kv);
  }
  if (on_host.rows > 0) host_attention_->finish(*stalls_);
}

// x += down(f(up(input))), gated or not
void Decoder::mlp_block(const LayerWeights& w, const MicroBatch& batch, const Activations& x,
                        const Activations& input) {
  const Activations all = inner(mlp_, batch.tokens, spec_.gated_mlp ? 2 * spec_.ffn : spec_.ffn);
  const Projection up{w.up.weight, w.up.bias, all.columns(0, spec_.ffn)};
  if (spec_.gated_mlp) {
    const Projection gate{w.gate.weight, w.gate.bias, all.columns(spec_.ffn, spec_.ffn)};
    ops_.gated_linear(spec_.activation, gate, up, input);
  } else {
    ops_.activated_linear(spec_.activation, up, input);
  }
  linear(w.down, up.out, x, LinearMode::kAccumulate);
}

void Decoder::gather_logit_rows(const MicroBatch& batch) {
  if (batch.logit_rows.empty()) return;
  const Activations x = x_->take(batch.first_row, batch.tokens, /*fresh=*/false, *stalls_);
  const auto count = static_cast<int64_t>(batch.logit_rows.size());
  const Activations wanted = spec_.final_norm ? residual(head_rows_, step_.logits, spec_.hidden)
                                              : inner(head_input_, step_.logits, spec_.hidden);
  ops_.gather_rows(x, batch.logit_rows, wanted.row_range(batch.first_logit, count));
  x_->release();
  if (const MicroBatch* const next = after(batch, spec_.layers))
    x_->expect(next->first_row, next->tokens, *stalls_);
}

void Decoder::logits() {
  const int64_t rows = step_.logits;
  Activations input = inner(head_input_, rows, spec_.hidden);
  if (spec_.final_norm) norm(weights_.final_norm, residual(head_rows_, rows, spec_.hidden), input);
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
