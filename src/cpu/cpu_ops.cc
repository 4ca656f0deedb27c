// SPDX-License-Identifier: Apache-2.0
#include "cpu/cpu_ops.h"

#include "cpu/attention/attention.h"
#include "cpu/attention/softmax_state.h"
#include "cpu/kv/kv_append.h"
#include "cpu/linear/linear.h"
#include "cpu/rows/activation.h"
#include "cpu/rows/embed.h"
#include "cpu/rows/gather.h"
#include "cpu/rows/norm.h"
#include "cpu/rows/rope.h"
#include "cpu/rows/score.h"

namespace spillway {

void CpuOps::embed(const WeightView& table, std::span<const int32_t> ids, const Activations& out,
                   LinearMode mode) {
  cpu::embed(pool_, table, ids, out, mode);
}

void CpuOps::scale(const Activations& x, float factor) { cpu::scale(pool_, x, factor); }

void CpuOps::add_norm(NormKind kind, const Activations& x, const WeightView& weight,
                      const WeightView& bias, float eps, const Activations& out) {
  cpu::add_norm(pool_, workspace_, kind, x, weight, bias, eps, out);
}

void CpuOps::norm(NormKind kind, const Activations& x, const WeightView& weight,
                  const WeightView& bias, float eps, const Activations& out) {
  cpu::norm(pool_, workspace_, kind, x, weight, bias, eps, out);
}

void CpuOps::linear(const WeightView& w, const WeightView& bias, const Activations& x,
                    const Activations& out, LinearMode mode) {
  cpu::linear(pool_, workspace_, w, bias, x, out, mode, deterministic_, tuning_);
}

void CpuOps::linears(std::span<const Projection> parts, const Activations& x) {
  cpu::linears(pool_, workspace_, parts, x, deterministic_, tuning_);
}

void CpuOps::gated_linear(ActivationKind kind, const Projection& gate, const Projection& up,
                          const Activations& x) {
  const Projection parts[] = {up, gate};
  linears(parts, x);
  gated_activate(kind, gate.out, up.out, up.out);
}

LinearKernel CpuOps::linear_kernel(const WeightView& w, int64_t tokens) const {
  return cpu::choose_linear_kernel(w, tokens, deterministic_, tuning_);
}

void CpuOps::rope_angles(std::span<const int32_t> positions,
                         std::span<const float> inverse_frequency, float scale,
                         const Activations& out) {
  cpu::rope_angles(pool_, positions, inverse_frequency, scale, out);
}

void CpuOps::rope(const Activations& x, int head_dim, const Activations& angles, RopeStyle style) {
  cpu::rope(pool_, x, head_dim, angles, style);
}

void CpuOps::kv_append(const Activations& k, const Activations& v, const KvLayerView& kv,
                       std::span<const SequenceSpan> spans) {
  cpu::kv_append(pool_, k, v, kv, spans, kv_faults_);
}

void CpuOps::attention(const Activations& q, const KvLayerView& kv,
                       std::span<const SequenceSpan> spans, const AttentionParams& params,
                       const Activations& out) {
  cpu::attention(pool_, workspace_, q, kv, spans, params, out, deterministic_);
}

void CpuOps::clear_state(const SoftmaxState& sums) { cpu::clear_state(pool_, sums); }

void CpuOps::attend_partition(const Activations& q, const KvLayerView& kv,
                              std::span<const SequenceSpan> spans, const AttentionParams& params,
                              const SoftmaxState& sums) {
  cpu::attend_partition(pool_, workspace_, q, kv, spans, params, sums, deterministic_);
}

void CpuOps::merge_state(const SoftmaxState& seen, const SoftmaxState& sums) {
  cpu::merge_state(pool_, seen, sums);
}

void CpuOps::finish_state(const SoftmaxState& sums, const Activations& out) {
  cpu::finish_state(pool_, sums, out);
}

void CpuOps::activate(ActivationKind kind, const Activations& x) { cpu::activate(pool_, kind, x); }

void CpuOps::gated_activate(ActivationKind kind, const Activations& gate, const Activations& up,
                            const Activations& out) {
  cpu::gated_activate(pool_, kind, gate, up, out);
}

void CpuOps::gather_rows(const Activations& x, std::span<const int32_t> rows,
                         const Activations& out) {
  cpu::gather_rows(pool_, x, rows, out);
}

void CpuOps::copy(const Activations& from, const Activations& to) {
  cpu::copy_rows(pool_, from, to);
}

void CpuOps::score(const Activations& logits, std::span<const int32_t> ids,
                   std::span<TokenScore> scores) {
  cpu::score(pool_, logits, ids, scores);
}

}  // namespace spillway
