// SPDX-License-Identifier: Apache-2.0
// Of a decoder: what the events of a step compute, from embeddings to logits.
#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "runtime/decoder.h"

namespace spillway {

Activations Decoder::angles_of(const MicroBatch& batch) {
  if (spec_.position != PositionKind::kRope) return {};
  return residual(angles_, tokens_, spec_.rope.dims).row_range(batch.first_row, batch.tokens);
}

void Decoder::embed(const MicroBatch& batch) {
  const Activations x = x_->take(batch.first_row, batch.tokens, /*fresh=*/true, *stalls_);
  WeightViews::HostTables tables{weights_.token_embedding, weights_.position_embedding};
  std::span<const int32_t> ids = batch.ids, positions = batch.table_rows;
  if (tables_ != nullptr) {
    tables = tables_->bring(ids, positions, mlp_.data());
    ids = positions = tables_->numbers(batch.tokens);
  }
  if (weights_.project_in.empty()) {
    ops_.embed(tables.token_embedding, ids, x, LinearMode::kStore);
  } else {
    const Activations narrow = inner(embedded_, batch.tokens, spec_.embedding_dim);
    ops_.embed(tables.token_embedding, ids, narrow, LinearMode::kStore);
    ops_.linear(weights_.project_in, {}, narrow, x, LinearMode::kStore);
  }
  if (spec_.position == PositionKind::kLearned) {
    ops_.embed(tables.position_embedding, positions, x, LinearMode::kAccumulate);
  } else {
    ops_.rope_angles(batch.positions, spec_.rope.inverse_frequencies, 1.0F, angles_of(batch));
  }
}

void Decoder::take_rows(const MicroBatch& batch) {
  now_.x = x_->take(batch.first_row, batch.tokens, /*fresh=*/false, *stalls_);
}

const StreamedLinear* Decoder::try_streamed(int layer, LinearGroup group) const {
  if (options_.stream == nullptr) return nullptr;
  const std::vector<StreamedLinear>& linears = options_.stream->order(order_).linears;
  const auto found = std::ranges::lower_bound(
      linears, std::pair(layer, group), {},
      [](const StreamedLinear& linear) { return std::pair(linear.layer, linear.group); });
  const bool is_it = found != linears.end() && found->layer == layer && found->group == group;
  return is_it ? &*found : nullptr;
}

WeightView Decoder::whole_of(int layer, WeightRole role) const {
  const bool is_head = role == WeightRole::kHead;
  const WeightView& there =
      is_head ? weights_.head : linear_of(weights_.layers[static_cast<size_t>(layer)], role).weight;
  return there.empty() ? weights_.streamed_of(layer, role).view : there;
}

LinearOp::Part Decoder::part_of(int layer, WeightRole role, const Activations& out) const {
  return {role, whole_of(layer, role),
          linear_of(weights_.layers[static_cast<size_t>(layer)], role).bias, out};
}

void Decoder::begin_linear(const LinearOp& op, int layer, LinearGroup group) {
  now_.op = op;
  now_.streamed = try_streamed(layer, group);
  if (now_.streamed != nullptr && !now_.streamed->on_cpu.empty())
    host_linear_->start(op, *now_.streamed, *stalls_);
  // Gate and up are one op: where one of them streams, rows of both are multiplied as it comes.
  const bool all_or_none = op.kind == LinearOp::Kind::kGated && now_.streamed != nullptr;
  std::array<LinearOp::Rows, 3> rows;
  for (size_t i = 0; i < static_cast<size_t>(op.count); ++i) {
    const WeightView& whole = op.parts[i].whole;
    rows[i].view = whole;
    if (whole.empty() || all_or_none)
      rows[i].view.sliced_from = std::exchange(rows[i].view.rows, 0);
  }
  op.run(ops_, rows);
  if (now_.streamed == nullptr) return;
  now_.first_piece = 0;
  for (const StreamedShape& before : shape_.streamed) {
    if (before.layer == layer && before.group == group) break;
    now_.first_piece += before.pieces;
  }
}

void Decoder::multiply_piece(int piece) {
  const std::span<const WeightView> views = pieces_[static_cast<size_t>(piece)];
  const OpRows& of_piece = now_.streamed->pieces[static_cast<size_t>(piece - now_.first_piece)];
  std::array<LinearOp::Rows, 3> rows;
  for (size_t i = 0; i < static_cast<size_t>(now_.op.count); ++i) {
    const LinearOp::Part& part = now_.op.parts[i];
    const auto found = std::ranges::find(of_piece, part.role, &MatrixRows::role);
    if (found != of_piece.end()) {
      rows[i] = {views[static_cast<size_t>(found - of_piece.begin())], found->first};
    } else if (now_.op.kind == LinearOp::Kind::kGated) {
      const MatrixRows& other = of_piece.front();
      rows[i] = {part.whole.slice(other.first, other.count), other.first};
    } else {
      rows[i].view = part.whole;
      rows[i].view.sliced_from = std::exchange(rows[i].view.rows, 0);
    }
  }
  now_.op.run(ops_, rows);
}

// q, k and v; where all is on the device, appended to the cache.
void Decoder::project(int layer, KvCache& kv, const MicroBatch& batch) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  Activations input = now_.x;
  if (spec_.norm_place == NormPlace::kPre) {
    input = inner(normed_, batch.tokens, spec_.hidden);
    norm(w.attention_norm, now_.x, input);
  }
  const Activations& qkv = now_.qkv = inner(qkv_, batch.tokens, spec_.q_dim() + 2 * spec_.kv_dim());
  now_.attended = inner(attended_, batch.tokens, spec_.q_dim());
  now_.angles = angles_of(batch);
  const Activations q = qkv.columns(0, spec_.q_dim()),
                    k = qkv.columns(spec_.q_dim(), spec_.kv_dim()),
                    v = qkv.columns(spec_.q_dim() + spec_.kv_dim(), spec_.kv_dim());
  now_.appended = batch.on_host.rows == 0 && batch.swaps.empty() && batch.parted.rows == 0 &&
                  try_streamed(layer, LinearGroup::kProject) == nullptr;
  if (now_.appended) {
    ops_.project_and_append({w.query.weight, w.query.bias, q}, {w.key.weight, w.key.bias, k},
                            {w.value.weight, w.value.bias, v}, input, now_.angles, spec_.rope.style,
                            view_on_device(layer, kv), batch.resident.spans);
    return;
  }
  LinearOp op{.count = 3, .x = input};
  op.parts = {part_of(layer, WeightRole::kQuery, q), part_of(layer, WeightRole::kKey, k),
              part_of(layer, WeightRole::kValue, v)};
  begin_linear(op, layer, LinearGroup::kProject);
}

void Decoder::attend_resident(int layer, KvCache& kv, const MicroBatch& batch) {
  attend_on_device(layer, kv, batch);
  if (step_.batches.size() == 1) return;  // between parts (parts_of_step)
  if (kv.layers().takes_turns(layer) && &batch == last_on_device_) turns_->release(kv, layer);
}

// Of a layer that takes turns: from the first use in a step on.
KvLayerView Decoder::view_on_device(int layer, KvCache& kv) {
  if (kv.layers().takes_turns(layer) && kv.layers().state(layer) != LayerState::kHere)
    turns_->acquire(kv, layer);
  return kv.layer(layer);
}

void Decoder::attend_on_device(int layer, KvCache& kv, const MicroBatch& batch) {
  const PathRows& path = batch.resident;
  const KvLayerView view = view_on_device(layer, kv);
  if (!now_.appended) {
    if (path.rows > 0) append_and_attend(path, view);
    if (batch.parted.rows == 0) return;
    const Activations q =
        now_.qkv.row_range(batch.parted.first_row, batch.parted.rows).columns(0, spec_.q_dim());
    for (const auto& spans : batch.parted.resident)
      device_.attention_parts().attend_part(q, view, spans, attention_params(), now_.sums);
    return;
  }
  const Activations q = now_.qkv.columns(0, spec_.q_dim());
  if (observer_) observer_(q, view, path.spans, attention_params());
  ops_.attention(q, view, path.spans, attention_params(), now_.attended);
}

Decoder::PathActivations Decoder::rows_on(const PathRows& path) const {
  const Activations rows = now_.qkv.row_range(path.first_row, path.rows);
  return {rows,
          rows.columns(0, spec_.q_dim()),
          rows.columns(spec_.q_dim(), spec_.kv_dim()),
          rows.columns(spec_.q_dim() + spec_.kv_dim(), spec_.kv_dim()),
          now_.angles.empty() ? now_.angles : now_.angles.row_range(path.first_row, path.rows),
          now_.attended.row_range(path.first_row, path.rows)};
}

void Decoder::append_and_attend(const PathRows& path, const KvLayerView& view) {
  const PathActivations rows = rows_on(path);
  ops_.rope_and_append(rows.q, rows.k, rows.v, rows.angles, spec_.rope.style, view, path.spans);
  if (observer_) observer_(rows.q, view, path.spans, attention_params());
  ops_.attention(rows.q, view, path.spans, attention_params(), rows.out);
}

void Decoder::attend_swapped(const SwapGroup& group, const KvLayerView& view) {
  if (!group.parts) return append_and_attend(group, view);
  const PathActivations rows = rows_on(group);
  if (!group.written.empty()) ops_.kv_append(rows.k, rows.v, view, group.written);
  device_.attention_parts().attend_part(rows.q, view, group.spans, attention_params(), now_.sums);
}

void Decoder::rope_rows(const PathActivations& rows) {
  if (rows.angles.empty() || rows.q.rows == 0) return;
  ops_.rope(rows.q, spec_.head_dim, rows.angles, spec_.rope.style);
  ops_.rope(rows.k, spec_.head_dim, rows.angles, spec_.rope.style);
}

AttentionSums Decoder::sums_of(const MicroBatch& batch) {
  if (batch.parted.rows == 0) return {};
  return {residual(sums_, batch.parted.rows, attention_sum_columns(spec_.heads, spec_.head_dim)),
          spec_.heads, spec_.head_dim};
}

// Rotated once for all parts; what is written on the device is there before any of them is seen.
void Decoder::begin_parts(int layer, KvCache& kv, const MicroBatch& batch) {
  const PathActivations rows = rows_on({batch.parted.first_row, batch.parted.rows, {}});
  rope_rows(rows);
  if (!batch.parted.written.empty())
    ops_.kv_append(rows.k, rows.v, view_on_device(layer, kv), batch.parted.written);
  now_.sums = sums_of(batch);
  device_.attention_parts().clear_sums(now_.sums);
}

void Decoder::end_parts(const MicroBatch& batch) {
  const PathActivations rows = rows_on({batch.parted.first_row, batch.parted.rows, {}});
  device_.attention_parts().finish_sums(now_.sums, rows.out);
}

void Decoder::start_on_host(int layer, KvCache& kv, const MicroBatch& batch) {
  const HostRows& host = batch.on_host;
  rope_rows(rows_on({host.first_row + host.shared_rows, host.rows - host.shared_rows, {}}));
  const PathActivations rows = rows_on(host);
  AttentionSums sums;
  if (host.shared_rows > 0)
    sums = now_.sums.row_range(host.first_row - batch.parted.first_row, host.shared_rows);
  host_attention_->start(rows.all, kv.host_layer(layer), host, attention_params(), rows.out, sums,
                         swap_.get());
}

// x += out(attended)
void Decoder::attention_out(int layer) {
  LinearOp op{.mode = LinearMode::kAccumulate, .count = 1, .x = now_.attended};
  op.parts[0] = part_of(layer, WeightRole::kAttentionOut, now_.x);
  begin_linear(op, layer, LinearGroup::kAttentionOut);
}

// f(up(x)), gated or not
void Decoder::up(int layer, const MicroBatch& batch) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  Activations input = now_.x;
  if (spec_.norm_place == NormPlace::kPre) {
    input = inner(normed_, batch.tokens, spec_.hidden);
    norm(w.mlp_norm, now_.x, input);
  } else {
    norm(w.attention_norm, now_.x, now_.x);
  }
  const Activations all = inner(mlp_, batch.tokens, spec_.gated_mlp ? 2 * spec_.ffn : spec_.ffn);
  const Activations result = all.columns(0, spec_.ffn);
  LinearOp op{
      .kind = LinearOp::Kind::kActivated, .activation = spec_.activation, .count = 1, .x = input};
  op.parts[0] = part_of(layer, WeightRole::kUp, result);
  if (spec_.gated_mlp) {
    op.kind = LinearOp::Kind::kGated;
    op.count = 2;
    op.parts[1] = op.parts[0];
    op.parts[0] = part_of(layer, WeightRole::kGate, all.columns(spec_.ffn, spec_.ffn));
  }
  begin_linear(op, layer, LinearGroup::kUp);
}

// x += down(what up gave)
void Decoder::down(int layer, const MicroBatch& batch) {
  const Activations all = inner(mlp_, batch.tokens, spec_.gated_mlp ? 2 * spec_.ffn : spec_.ffn);
  LinearOp op{.mode = LinearMode::kAccumulate, .count = 1, .x = all.columns(0, spec_.ffn)};
  op.parts[0] = part_of(layer, WeightRole::kDown, now_.x);
  begin_linear(op, layer, LinearGroup::kDown);
}

void Decoder::finish_layer(int layer) {
  if (spec_.norm_place == NormPlace::kPre) return;
  norm(weights_.layers[static_cast<size_t>(layer)].mlp_norm, now_.x, now_.x);
}

void Decoder::gather_logit_rows(const MicroBatch& batch) {
  const auto count = static_cast<int64_t>(batch.logit_rows.size());
  const Activations wanted = spec_.final_norm ? residual(head_rows_, step_.logits, spec_.hidden)
                                              : inner(head_input_, step_.logits, spec_.hidden);
  ops_.gather_rows(now_.x, batch.logit_rows, wanted.row_range(batch.first_logit, count));
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
  LinearOp op{.count = 1, .x = input};
  op.parts[0] = {WeightRole::kHead,
                 whole_of(spec_.layers, WeightRole::kHead),
                 {},
                 residual(logits_, rows, spec_.vocab_size)};
  begin_linear(op, spec_.layers, LinearGroup::kHead);
}

void Decoder::norm(const NormWeights& w, const Activations& x, const Activations& out) {
  ops_.norm(spec_.norm, x, w.weight, w.bias, spec_.norm_eps, out);
}

}  // namespace spillway
