// SPDX-License-Identifier: Apache-2.0
// The CPU's ops, which record and replay steps as a GPU does.
//
// A replayed op gets the arguments that it was recorded with, except what the step's batch
// provides: tokens, sequences, and where each layer's KV is. So a test of whole networks shows
// whether a step's graph key (StepBatch::graph_key) really stands for everything else.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cpu/cpu_ops.h"
#include "device/recorded_steps.h"

namespace spillway {

// Records steps in which every sequence has one row, as a GPU does. Ops that steps with a graph key
// never call are not recorded: their results would be missing in a replay. Single-threaded.
class ReplayingOps : public CpuOps {
 public:
  using CpuOps::CpuOps;

  using CpuOps::run_step;
  void run_step(const StepBatch& batch, std::span<const StepPart> parts) override;
  // The numbers of steps so far.
  int64_t recordings() const { return steps_.recordings(); }
  int64_t replays() const { return steps_.replays(); }

  void embed(const WeightView& table, std::span<const int32_t> ids, const Activations& out,
             LinearMode mode) override;
  void scale(const Activations& x, float factor) override;
  void add_norm(NormKind kind, const Activations& x, const WeightView& weight,
                const WeightView& bias, float eps, const Activations& out) override;
  void norm(NormKind kind, const Activations& x, const WeightView& weight, const WeightView& bias,
            float eps, const Activations& out) override;
  void linear(const WeightView& w, const WeightView& bias, const Activations& x,
              const Activations& out, LinearMode mode) override;
  void linears(std::span<const Projection> parts, const Activations& x) override;
  void rope_angles(std::span<const int32_t> positions, std::span<const float> inverse_frequency,
                   float scale, const Activations& out) override;
  void rope(const Activations& x, int head_dim, const Activations& angles,
            RopeStyle style) override;
  void kv_append(const Activations& k, const Activations& v, const KvLayerView& kv,
                 std::span<const SequenceSpan> spans) override;
  void attention(const Activations& q, const KvLayerView& kv, std::span<const SequenceSpan> spans,
                 const AttentionParams& params, const Activations& out) override;
  void activate(ActivationKind kind, const Activations& x) override;
  void gated_activate(ActivationKind kind, const Activations& gate, const Activations& up,
                      const Activations& out) override;
  void gather_rows(const Activations& x, std::span<const int32_t> rows,
                   const Activations& out) override;

 private:
  struct Key {
    uint64_t graph_key = 0;
    size_t tokens = 0, sequences = 0, logit_rows = 0;
    auto operator<=>(const Key&) const = default;
  };
  using Tape = std::vector<std::function<void(const StepBatch&)>>;

  // Adds the call to the current recording, if any; in a replay it is called with the new batch.
  template <class Call>
  void note(const Call& call) {
    if (tape_ != nullptr) tape_->emplace_back(call);
  }
  // Returns which array of the batch an op was given, so that a replay uses the same one of another
  // batch.
  using Array = std::span<const int32_t> StepBatch::*;
  Array array_of(std::span<const int32_t> values) const;
  // Returns which list of the batch's spans an op was given, and checks that its planes are the
  // batch's.
  size_t sequences_of(const KvLayerView& kv, std::span<const SequenceSpan> spans) const;
  static std::span<const SequenceSpan> spans_of(const StepBatch& batch, size_t list) {
    return list == 0 ? batch.spans : batch.other_spans[list - 1];
  }

  RecordedSteps<Key, Tape> steps_;
  const StepBatch* batch_ = nullptr;  // of the step being recorded
  Tape* tape_ = nullptr;              // of its current segment; null if nothing is being recorded
};

}  // namespace spillway
