// SPDX-License-Identifier: Apache-2.0
#include "cpu/replaying_ops.h"

#include <algorithm>

#include "base/error.h"

namespace spillway {
namespace {

KvLayerView moved(KvLayerView kv, const StepBatch& batch) {
  const KvPlanes& now = batch.kv[static_cast<size_t>(kv.layer)];
  kv.k = now.k;
  kv.v = now.v;
  return kv;
}

}  // namespace

void ReplayingOps::run_step(const StepBatch& batch, std::span<const StepPart> parts) {
  const bool one_row_each =
      std::ranges::all_of(batch.spans, [](const SequenceSpan& span) { return span.rows == 1; });
  if (batch.graph_key == 0 || !one_row_each) return CpuOps::run_step(batch, parts);
  const auto record = [&](size_t part) {
    Tape tape;
    batch_ = &batch;
    tape_ = &tape;
    try {
      parts[part].ops();
    } catch (...) {
      tape_ = nullptr;
      throw;
    }
    tape_ = nullptr;
    return tape;
  };
  steps_.run(
      {batch.graph_key, batch.ids.size(), batch.spans.size(), batch.logit_rows.size()}, parts,
      [&](size_t part) { parts[part].ops(); }, record,
      [&](const Tape& tape) {
        for (const auto& op : tape) op(batch);
      });
}

ReplayingOps::Array ReplayingOps::array_of(std::span<const int32_t> values) const {
  for (const Array array :
       {&StepBatch::ids, &StepBatch::positions, &StepBatch::table_rows, &StepBatch::logit_rows}) {
    const std::span<const int32_t> given = batch_->*array;
    if (given.data() == values.data() && given.size() == values.size()) return array;
  }
  SPW_ASSERT(!"an op of a recorded step was given an array that is not the batch's");
  return nullptr;
}

size_t ReplayingOps::sequences_of(const KvLayerView& kv,
                                  std::span<const SequenceSpan> spans) const {
  size_t list = 0;
  while (spans_of(*batch_, list).data() != spans.data()) {
    SPW_ASSERT(list < batch_->other_spans.size());
    ++list;
  }
  SPW_ASSERT(spans_of(*batch_, list).size() == spans.size());
  const KvPlanes& said = batch_->kv[static_cast<size_t>(kv.layer)];
  SPW_ASSERT(said.k == kv.k && said.v == kv.v);
  return list;
}

// Replayed ops are called through the virtual functions, so that what derived classes add happens
// again.

void ReplayingOps::embed(const WeightView& table, std::span<const int32_t> ids,
                         const Activations& out, LinearMode mode) {
  if (tape_ != nullptr) {
    note([=, this, array = array_of(ids)](const StepBatch& b) {
      embed(table, b.*array, out, mode);
    });
  }
  CpuOps::embed(table, ids, out, mode);
}

void ReplayingOps::norm(NormKind kind, const Activations& x, const WeightView& weight,
                        const WeightView& bias, float eps, const Activations& out) {
  note([=, this](const StepBatch&) { norm(kind, x, weight, bias, eps, out); });
  CpuOps::norm(kind, x, weight, bias, eps, out);
}

void ReplayingOps::add_norm(NormKind kind, const Activations& x, const WeightView& weight,
                            const WeightView& bias, float eps, const Activations& out) {
  note([=, this](const StepBatch&) { add_norm(kind, x, weight, bias, eps, out); });
  CpuOps::add_norm(kind, x, weight, bias, eps, out);
}

void ReplayingOps::scale(const Activations& x, float factor) {
  note([=, this](const StepBatch&) { scale(x, factor); });
  CpuOps::scale(x, factor);
}

void ReplayingOps::linear(const WeightView& w, const WeightView& bias, const Activations& x,
                          const Activations& out, LinearMode mode) {
  note([=, this](const StepBatch&) { linear(w, bias, x, out, mode); });
  CpuOps::linear(w, bias, x, out, mode);
}

void ReplayingOps::linears(std::span<const Projection> parts, const Activations& x) {
  note([=, this, own = std::vector<Projection>(parts.begin(), parts.end())](const StepBatch&) {
    linears(own, x);
  });
  CpuOps::linears(parts, x);
}

void ReplayingOps::rope_angles(std::span<const int32_t> positions,
                               std::span<const float> inverse_frequency, float scale,
                               const Activations& out) {
  if (tape_ != nullptr) {
    note([=, this, array = array_of(positions)](const StepBatch& b) {
      rope_angles(b.*array, inverse_frequency, scale, out);
    });
  }
  CpuOps::rope_angles(positions, inverse_frequency, scale, out);
}

void ReplayingOps::rope(const Activations& x, int head_dim, const Activations& angles,
                        RopeStyle style) {
  note([=, this](const StepBatch&) { rope(x, head_dim, angles, style); });
  CpuOps::rope(x, head_dim, angles, style);
}

void ReplayingOps::kv_append(const Activations& k, const Activations& v, const KvLayerView& kv,
                             std::span<const SequenceSpan> spans) {
  if (tape_ != nullptr) {
    note([=, this, list = sequences_of(kv, spans)](const StepBatch& b) {
      kv_append(k, v, moved(kv, b), spans_of(b, list));
    });
  }
  CpuOps::kv_append(k, v, kv, spans);
}

void ReplayingOps::attention(const Activations& q, const KvLayerView& kv,
                             std::span<const SequenceSpan> spans, const AttentionParams& params,
                             const Activations& out) {
  if (tape_ != nullptr) {
    note([=, this, list = sequences_of(kv, spans)](const StepBatch& b) {
      attention(q, moved(kv, b), spans_of(b, list), params, out);
    });
  }
  CpuOps::attention(q, kv, spans, params, out);
}

void ReplayingOps::activate(ActivationKind kind, const Activations& x) {
  note([=, this](const StepBatch&) { activate(kind, x); });
  CpuOps::activate(kind, x);
}

void ReplayingOps::gated_activate(ActivationKind kind, const Activations& gate,
                                  const Activations& up, const Activations& out) {
  note([=, this](const StepBatch&) { gated_activate(kind, gate, up, out); });
  CpuOps::gated_activate(kind, gate, up, out);
}

void ReplayingOps::gather_rows(const Activations& x, std::span<const int32_t> rows,
                               const Activations& out) {
  if (tape_ != nullptr) {
    note([=, this, array = array_of(rows)](const StepBatch& b) { gather_rows(x, b.*array, out); });
  }
  CpuOps::gather_rows(x, rows, out);
}

}  // namespace spillway
