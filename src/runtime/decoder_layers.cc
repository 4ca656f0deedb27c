// SPDX-License-Identifier: Apache-2.0
// The part of Decoder that computes what the events of a step ask for, from embeddings to logits.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/weight_slots.h"
#include "runtime/decoder.h"

namespace spillway {

Activations Decoder::angles_of(const MicroBatch& batch, int rope) {
  if (rope < 0) return {};
  const int dims = spec_.ropes[static_cast<size_t>(rope)].dims;
  return residual(angles_[static_cast<size_t>(rope)], tokens_, dims)
      .row_range(batch.first_row, batch.tokens);
}

Activations Decoder::at(const LoweredLayer& list, Place place, int64_t rows, int64_t columns) {
  if (place == kResidual) return now_.x;
  const auto number = static_cast<size_t>(place);
  const Activations all = scratch(list.buffers[number], rows, list.columns[number]);
  return columns == all.cols ? all : all.columns(0, columns);
}

void Decoder::embed(const MicroBatch& batch) {
  const LoweredLayer& list = model_->embedding;
  if (!list.ops.empty()) now_.x = x_->take(batch.first_row, batch.tokens, /*fresh=*/true, *stalls_);
  WeightViews::HostTables tables;
  std::span<const int32_t> ids = batch.ids, positions = batch.table_rows;
  if (tables_ != nullptr) {
    tables = tables_->bring(ids, positions, scratches_[model_->widest_buffer()].data());
    ids = positions = tables_->numbers(batch.tokens);
  }
  for (const LoweredOp& lowered : list.ops) {
    const OpSpec& op = list.spec->ops[static_cast<size_t>(lowered.op)];
    const MatrixSpec& matrix = op.matrices.front();
    const MatrixWeights& w = weights_.embedding.of(lowered.op);
    if (op.kind == OpKind::kEmbedding) {
      const bool by_position = op.embedding.by_position;
      const WeightView& brought = by_position ? tables.by_position : tables.by_token;
      const LinearMode mode = by_position ? LinearMode::kAccumulate : LinearMode::kStore;
      ops_.embed(tables_ != nullptr ? brought : w.weight, by_position ? positions : ids,
                 at(list, op.output, batch.tokens, matrix.cols), mode);
      if (op.embedding.scale != 1)
        ops_.scale(at(list, op.output, batch.tokens, matrix.cols), op.embedding.scale);
    } else {
      ops_.linear(w.weight, w.bias, at(list, op.input, batch.tokens, matrix.cols),
                  at(list, op.output, batch.tokens, matrix.rows), LinearMode::kStore);
    }
  }
  for (size_t rope = 0; rope < spec_.ropes.size(); ++rope) {
    const RopeSpec& of = spec_.ropes[rope];
    ops_.rope_angles(batch.positions, of.inverse_frequencies, of.scale,
                     angles_of(batch, static_cast<int>(rope)));
  }
}

void Decoder::wait_for_hidden_states(const MicroBatch& batch) {
  now_.x = x_->take(batch.first_row, batch.tokens, /*fresh=*/false, *stalls_);
  now_.appended = false;
}

void Decoder::take_over(const MicroBatch& batch) {
  now_.x = x_->take(batch.first_row, batch.tokens, /*fresh=*/true, *stalls_);
  options_.link->receive(now_.x);
}

// In a replayed step nothing has called wait_for_hidden_states(); its rows are then all on the
// device.
void Decoder::hand_over(const MicroBatch& batch) {
  if (!x_->is_away(batch.first_row, batch.tokens)) wait_for_hidden_states(batch);
  options_.link->send(now_.x);
  x_->release();
}

const StreamedLinear* Decoder::try_streamed(int layer, int op) const {
  if (options_.stream == nullptr) return nullptr;
  const std::vector<StreamedLinear>& linears =
      options_.stream->schedule(streaming_schedule_).linears;
  const auto found = std::ranges::lower_bound(
      linears, std::pair(layer, op), {},
      [](const StreamedLinear& linear) { return std::pair(linear.layer, linear.op); });
  const bool is_it = found != linears.end() && found->layer == layer && found->op == op;
  return is_it ? &*found : nullptr;
}

void Decoder::norm(int layer, int op, int64_t rows, bool is_added) {
  const LoweredLayer& list = model_->layer(layer);
  const OpSpec& of = list.spec->ops[static_cast<size_t>(op)];
  const MatrixWeights& w = weights_.list(layer).of(op);
  if (of.norm.columns > 0) {
    const auto place = static_cast<size_t>(of.input);
    const Activations all = at(list, of.input, rows, list.columns[place]);
    return ops_.head_norm(of.norm.kind, all.columns(of.norm.first_column, of.norm.columns),
                          w.weight, of.norm.eps);
  }
  const Activations x = at(list, of.input, rows, spec_.hidden);
  if (is_added) return ops_.add_norm(of.norm.kind, x, w.weight, w.bias, of.norm.eps, now_.x);
  ops_.norm(of.norm.kind, x, w.weight, w.bias, of.norm.eps,
            at(list, of.output, rows, spec_.hidden));
}

// Runs the norms before the op, and sets now_.op to its inputs, matrices and outputs.
void Decoder::prepare_linear(const StepEvent& event, int64_t rows) {
  const LoweredLayer& list = model_->layer(event.layer);
  const LoweredOp& lowered = list.ops[static_cast<size_t>(event.op)];
  const OpSpec& of = list.spec->ops[static_cast<size_t>(lowered.op)];
  const ListWeights& weights = weights_.list(event.layer);
  for (const int number : lowered.norms) norm(event.layer, number, rows);
  LinearOp& op = now_.op;
  op.parts.clear();  // clearing the whole op would write hundreds of bytes for every linear op
  op.kind = LinearOp::Kind::kLinears;
  op.x = at(list, of.input, rows, of.matrices.front().cols);
  op.mode = lowered.finish == LinearFinish::kAdd ? LinearMode::kAccumulate : LinearMode::kStore;
  const bool gated = lowered.finish == LinearFinish::kGate;
  if (lowered.activation >= 0) {
    op.kind = gated ? LinearOp::Kind::kGated : LinearOp::Kind::kActivated;
    op.activation = list.spec->ops[static_cast<size_t>(lowered.activation)].activation.kind;
  }
  int64_t columns = 0;
  for (const MatrixSpec& matrix : of.matrices) columns += matrix.rows;
  const Activations out = at(list, lowered.output, rows, columns);
  // The matrices' results lie side by side. A gated op's result is in the first columns: it is
  // written over `up`, so `up` comes before the gate.
  int64_t first = gated ? columns : 0;
  for (size_t i = 0; i < of.matrices.size(); ++i) {
    const int64_t count = of.matrices[i].rows;
    if (gated) first -= count;
    const MatrixWeights& w = weights.of(lowered.op, static_cast<int>(i));
    const WeightView& whole =
        w.weight.empty() ? weights_.streamed_of(event.layer, lowered.op, static_cast<int>(i)).view
                         : w.weight;
    op.parts.push_back({whole, w.bias, count == out.cols ? out : out.columns(first, count)});
    if (!gated) first += count;
  }
  now_.streamed = try_streamed(event.layer, event.op);
  now_.started = false;
}

void Decoder::start_linear_on_cpu(const StepEvent& event, int64_t rows) {
  prepare_linear(event, rows);
  host_linear_->start(now_.op, *now_.streamed, *stalls_);
  now_.started = true;
}

void Decoder::run_linear(const StepEvent& event, int64_t rows) {
  if (!std::exchange(now_.started, false)) prepare_linear(event, rows);
  const LinearOp& op = now_.op;
  // Gate and up are one op: if either is streamed, rows of both are multiplied as segments arrive.
  const bool all_or_none = op.kind == LinearOp::Kind::kGated && now_.streamed != nullptr;
  LinearOp::SomeRows some;
  for (const LinearOp::Part& part : op.parts) {
    LinearOp::Rows of{.view = part.whole};
    if (part.whole.empty() || all_or_none) of.view.sliced_from = std::exchange(of.view.rows, 0);
    some.push_back(of);
  }
  op.run(ops_, some);
  if (now_.streamed == nullptr) return;
  const std::vector<StreamedLinear>& linears =
      options_.stream->schedule(streaming_schedule_).linears;
  now_.first_segment = first_pieces_[static_cast<size_t>(now_.streamed - linears.data())];
}

void Decoder::multiply_segment(const StepEvent& event) {
  const std::span<const WeightView> views = weight_segments_[static_cast<size_t>(event.group)];
  const OpRows& of_piece =
      now_.streamed->segments[static_cast<size_t>(event.group - now_.first_segment)];
  LinearOp::SomeRows some;
  for (size_t i = 0; i < now_.op.parts.size(); ++i) {
    const LinearOp::Part& part = now_.op.parts[i];
    const auto* const found = std::ranges::find(of_piece, static_cast<int>(i), &MatrixRows::matrix);
    LinearOp::Rows rows;
    if (found != of_piece.end()) {
      rows = {views[static_cast<size_t>(found - of_piece.begin())], found->first};
    } else if (now_.op.kind == LinearOp::Kind::kGated) {
      const MatrixRows& other = of_piece.front();
      rows = {part.whole.slice(other.first, other.count), other.first};
    } else {
      rows.view = part.whole;
      rows.view.sliced_from = std::exchange(rows.view.rows, 0);
    }
    some.push_back(rows);
  }
  now_.op.run(ops_, some);
}

// Computes q, k and v, rotates them and appends them to the cache in one op, if everything it needs
// is on the device.
bool Decoder::try_project_and_append(const StepEvent& event, KvCache& kv, const MicroBatch& batch) {
  const LoweredLayer& list = model_->layer(event.layer);
  const LoweredOp& lowered = list.ops[static_cast<size_t>(event.op)];
  now_.appended = lowered.finish == LinearFinish::kAppend && batch.on_host.rows == 0 &&
                  batch.swaps.empty() && batch.partitioned.rows == 0 &&
                  try_streamed(event.layer, event.op) == nullptr;
  if (!now_.appended) return false;
  prepare_linear(event, batch.tokens);
  begin_attention(event.layer, batch);
  const std::vector<SequenceSpan>& spans = kv_rows(batch, event.layer).resident.spans;
  const auto projection = [&](size_t i) {
    const LinearOp::Part& part = now_.op.parts[i];
    return Projection{part.whole, part.bias, part.out};
  };
  ops_.project_and_append(projection(0), projection(1), projection(2), now_.op.x, now_.angles,
                          now_.rope_style, kv.layer(event.layer), spans);
  return true;
}

void Decoder::begin_attention(int layer, const MicroBatch& batch) {
  const LoweredLayer& list = model_->layer(layer);
  const LoweredOp& lowered = list.ops[static_cast<size_t>(list.attention_op())];
  const OpSpec& of = list.spec->ops[static_cast<size_t>(lowered.op)];
  now_.qkv = at(list, of.input, batch.tokens, of.attention.input_columns());
  now_.attended = at(list, of.output, batch.tokens, of.attention.q_dim());
  const int rope = lowered.rope < 0 ? -1 : list.spec->ops[static_cast<size_t>(lowered.rope)].rope;
  now_.angles = angles_of(batch, rope);
  if (rope >= 0) now_.rope_style = spec_.ropes[static_cast<size_t>(rope)].style;
}

void Decoder::attend_on_device(int layer, const KvCache& kv, const MicroBatch& batch) {
  const KvRows& rows = kv_rows(batch, layer);
  const PathRows& path = rows.resident;
  const KvLayerView view = kv.layer(layer);
  begin_attention(layer, batch);
  if (!now_.appended) {
    if (path.rows > 0) append_and_attend(layer, path, view);
    if (batch.partitioned.rows == 0) return;
    const Activations q = now_.qkv.row_range(batch.partitioned.first_row, batch.partitioned.rows)
                              .columns(0, attention_of(layer).q_dim());
    for (const auto& spans : rows.partitioned.resident)
      device_.partitioned_attention().attend_partition(q, view, spans, attention_params(layer),
                                                       now_.sums);
    return;
  }
  const Activations q = now_.qkv.columns(0, attention_of(layer).q_dim());
  if (observer_) observer_(q, view, path.spans, attention_params(layer));
  ops_.attention(q, view, path.spans, attention_params(layer), now_.attended);
}

Decoder::PathActivations Decoder::rows_on(int layer, const PathRows& path) const {
  const Activations rows = now_.qkv.row_range(path.first_row, path.rows);
  const AttentionSpec& of = attention_of(layer);
  const int64_t q_dim = of.q_dim(), kv_dim = of.kv_dim();
  return {rows,
          rows.columns(0, q_dim),
          of.owns_state() ? rows.columns(q_dim, kv_dim) : Activations{},
          of.owns_state() ? rows.columns(q_dim + kv_dim, kv_dim) : Activations{},
          now_.angles.empty() ? now_.angles : now_.angles.row_range(path.first_row, path.rows),
          now_.attended.row_range(path.first_row, path.rows)};
}

void Decoder::append_and_attend(int layer, const PathRows& path, const KvLayerView& view) {
  const PathActivations rows = rows_on(layer, path);
  if (attention_of(layer).owns_state()) {
    ops_.rope_and_append(rows.q, rows.k, rows.v, rows.angles, now_.rope_style, view, path.spans);
  } else {
    rope_rows(layer, rows);
  }
  if (observer_) observer_(rows.q, view, path.spans, attention_params(layer));
  ops_.attention(rows.q, view, path.spans, attention_params(layer), rows.out);
}

void Decoder::attend_swapped(int layer, const MicroBatch& batch, const SwapGroup& group) {
  const KvLayerView& view = now_.swapped;
  begin_attention(layer, batch);
  if (!group.partitioned) return append_and_attend(layer, group, view);
  const PathActivations rows = rows_on(layer, group);
  if (!group.written.empty() && attention_of(layer).owns_state())
    ops_.kv_append(rows.k, rows.v, view, group.written);
  device_.partitioned_attention().attend_partition(rows.q, view, group.spans,
                                                   attention_params(layer), now_.sums);
}

void Decoder::rope_rows(int layer, const PathActivations& rows) {
  if (rows.angles.empty() || rows.q.rows == 0) return;
  const int head_dim = attention_of(layer).head_dim;
  ops_.rope(rows.q, head_dim, rows.angles, now_.rope_style);
  if (attention_of(layer).owns_state()) ops_.rope(rows.k, head_dim, rows.angles, now_.rope_style);
}

SoftmaxState Decoder::softmax_state_of(const MicroBatch& batch) {
  if (batch.partitioned.rows == 0) return {};
  return {
      residual(sums_, batch.partitioned.rows, softmax_state_columns(spec_.heads, spec_.head_dim)),
      spec_.heads, spec_.head_dim};
}

// q and k are rotated once for all partitions. What is written on the device is appended before any
// partition is attended to.
void Decoder::begin_partitions(int layer, const KvCache& kv, const MicroBatch& batch) {
  begin_attention(layer, batch);
  const PathActivations rows =
      rows_on(layer, {batch.partitioned.first_row, batch.partitioned.rows, {}});
  rope_rows(layer, rows);
  const std::vector<SequenceSpan>& written = kv_rows(batch, layer).partitioned.written;
  if (!written.empty() && attention_of(layer).owns_state())
    ops_.kv_append(rows.k, rows.v, kv.layer(layer), written);
  now_.sums = softmax_state_of(batch);
  device_.partitioned_attention().clear_state(now_.sums);
}

void Decoder::end_partitions(int layer, const MicroBatch& batch) {
  begin_attention(layer, batch);
  const PathActivations rows =
      rows_on(layer, {batch.partitioned.first_row, batch.partitioned.rows, {}});
  device_.partitioned_attention().finish_state(now_.sums, rows.out);
}

void Decoder::start_on_host(int layer, KvCache& kv, const MicroBatch& batch) {
  begin_attention(layer, batch);
  const HostRows& host = kv_rows(batch, layer).on_host;
  rope_rows(layer,
            rows_on(layer, {host.first_row + host.shared_rows, host.rows - host.shared_rows, {}}));
  const PathActivations rows = rows_on(layer, host);
  SoftmaxState sums;
  if (host.shared_rows > 0)
    sums = now_.sums.row_range(host.first_row - batch.partitioned.first_row, host.shared_rows);
  host_attention_->start(rows.all, kv.host_layer(layer), host, attention_params(layer), rows.out,
                         sums, swap_.get());
}

void Decoder::gather_logit_rows(const StepEvent& event, const MicroBatch& batch) {
  const auto count = static_cast<int64_t>(batch.logit_rows.size());
  const LoweredLayer& list = model_->layer(event.layer);
  const Activations wanted = at(list, list.of(event.op).output, step_.logits, spec_.hidden);
  ops_.gather_rows(now_.x, batch.logit_rows, wanted.row_range(batch.first_logit, count));
}

}  // namespace spillway
