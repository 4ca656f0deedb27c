// SPDX-License-Identifier: Apache-2.0
#include "cuda/persistent/persistent_step.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "cuda/persistent/persistent_step_kernel.h"
#include "cuda/persistent/persistent_step_list.h"

namespace spillway::cuda {
namespace {

bool is_aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool is_16_bit(DType type) { return type == DType::kF16 || type == DType::kBF16; }

// Returns the type of the activations that go with weights of this type.
DType values_of(DType weights) { return is_16_bit(weights) ? weights : DType::kF16; }

// Returns how many units of work are dealt to thread blocks: pairs of rows, or sets of groups of 16
// rows.
int deals_of(const StepPhase& phase, DType weights) {
  const bool gated = phase.kind == PhaseKind::kGated;
  const int rows = is_16_bit(weights) ? 2 : kGroupRowCount * (gated ? 1 : set_groups(phase.kind));
  if (gated) return is_16_bit(weights) ? phase.n[0] : phase.n[0] / rows;
  int deals = 0;
  for (const int32_t n : phase.n) deals += (n + rows - 1) / rows;
  return deals;
}

// Sets matrix i of a phase. Returns false if the persistent step cannot copy this matrix.
bool set_matrix(StepPhase& phase, int i, const LinearPart& part) {
  const WeightView& w = part.w;
  SPW_ASSERT(w.cols == phase.k && w.rows < (int64_t{1} << 30));
  phase.w[i] = w.data;
  phase.bias[i] = part.bias;
  phase.n[i] = static_cast<int32_t>(w.rows);
  const bool packed = !is_16_bit(w.dtype);
  return w.layout == (packed ? WeightLayout::kGroups16 : WeightLayout::kRows) &&
         (!packed || w.rows % kGroupRows == 0) && is_aligned16(w.data);
}

PhaseSequence sequence_of(const BatchView& batch, const KvLayerView& kv) {
  return {batch.start, batch.block_table, kv.block_bytes(), kv.head_dim};
}

}  // namespace

PersistentStep::PersistentStep(const GpuShape& gpu) : gpu_(gpu) {}

bool PersistentStep::serves(const GpuShape& gpu, const WeightTypes& weights) {
  return has_persistent_kernel(weights) &&
         persistent_stages(gpu, weights, persistent_input_bytes(weights, 0)) > 0;
}

size_t PersistentStep::scratch_bytes(const GpuShape& gpu) { return persistent_scratch_bytes(gpu); }

bool PersistentStep::find_input(const Activations& x, DType type, StepPhase& phase) const {
  phase.x = x.data;
  if (deferred_.norm && deferred_.norm->out.data == x.data) {
    const DeferredNorm& norm = *deferred_.norm;
    if (norm.out.dtype != type || norm.out.cols != x.cols) return false;
    phase.x = norm.x.data;
    phase.norm = norm.kind;
    phase.norm_weight = norm.weight;
    phase.norm_bias = norm.bias;
    phase.norm_eps = norm.eps;
    return true;
  }
  SPW_ASSERT(std::ranges::find(gone_, x.data) == gone_.end());
  if (deferred_.copy && deferred_.copy->out.data == x.data) return false;
  return x.dtype == type && is_aligned16(x.data);
}

bool PersistentStep::must_keep(const std::byte* data) const {
  const auto& [copy, norm] = deferred_;
  return (norm && (norm->out.data == data || (norm->x.data == data && !norm_read_))) ||
         (copy && (copy->out.data == data || (copy->x.data == data && !copy_read_)));
}

void PersistentStep::note_read(const Activations& x) {
  if (deferred_.norm && deferred_.norm->out.data == x.data) norm_read_ = true;
}

void PersistentStep::note_written(const std::byte* data) {
  std::erase(gone_, data);
  auto& [copy, norm] = deferred_;
  if (norm && norm->x.data == data) {
    gone_.push_back(norm->out.data);
    norm.reset();
  }
  if (copy && copy->x.data == data) {
    gone_.push_back(copy->out.data);
    copy.reset();
  }
}

bool PersistentStep::defer_norm(const DeferredNorm& norm) {
  const bool layer = norm.kind == NormKind::kLayer;
  // Only one norm is deferred at a time. A new one replaces it only if a phase has read the old
  // result and the new one overwrites it.
  if (deferred_.norm && (!norm_read_ || deferred_.norm->out.data != norm.out.data)) return false;
  if (deferred_.copy && deferred_.copy->out.data == norm.out.data) return false;
  if (norm.x.rows != 1 || norm.x.dtype != DType::kF32 || !is_16_bit(norm.out.dtype) ||
      norm.x.cols % 8 != 0 || norm.x.cols > kStepNormColumns || norm.weight == nullptr ||
      layer != (norm.bias != nullptr) || !is_aligned16(norm.x.data) || !is_aligned16(norm.weight) ||
      !is_aligned16(norm.bias)) {
    return false;
  }
  DeferredNorm deferred = norm;
  if (deferred_.copy && deferred_.copy->out.data == norm.x.data) {
    deferred.x = deferred_.copy->x;
    copy_read_ = true;
  }
  deferred_.norm = deferred;
  norm_read_ = false;
  std::erase(gone_, norm.out.data);
  return true;
}

bool PersistentStep::defer_copy(const DeferredCopy& copy) {
  if (deferred_.copy || copy.x.rows != 1 || copy.out.rows != 1 || copy.x.dtype != DType::kF32 ||
      copy.out.dtype != DType::kF32 || must_keep(copy.out.data)) {
    return false;
  }
  std::erase(gone_, copy.out.data);
  deferred_.copy = copy;
  copy_read_ = false;
  return true;
}

PersistentStep::Deferred PersistentStep::take_deferred(bool step_ends) {
  Deferred deferred = std::exchange(deferred_, {});
  if (step_ends && copy_read_) deferred.copy.reset();
  if (step_ends && norm_read_) deferred.norm.reset();
  gone_.clear();
  return deferred;
}

bool PersistentStep::add(StepPhase& phase, DType values, std::optional<DType> weights,
                         const Shared& shared) {
  // Attention can share a launch with any weights whose activations have its type.
  const bool first = phases_.count == 0;
  if (phases_.count == kStepPhases || (!first && values != values_)) return false;
  WeightTypes all = weights_;
  if (weights && !all.try_add(*weights)) return false;
  const WeightTypes types = all.empty() ? WeightTypes(values) : all;
  if (!has_persistent_kernel(types)) return false;
  const int x_bytes = input_bytes(types, phase.k);
  if (persistent_stages(gpu_, types, x_bytes) == 0) return false;
  const auto agree = [](const auto& known, const auto& wanted) {
    return !known || !wanted || *known == *wanted;
  };
  if (!agree(shared_.sequence, shared.sequence) || !agree(shared_.appends, shared.appends) ||
      !agree(shared_.attends, shared.attends)) {
    return false;
  }
  if (shared.sequence) shared_.sequence = shared.sequence;
  if (shared.appends) shared_.appends = shared.appends;
  if (shared.attends) shared_.attends = shared.attends;
  phase.pairs = weights ? deals_of(phase, *weights) : 0;
  phase.weights = weights.value_or(values);
  values_ = values;
  weights_ = all;
  phases_.x_bytes = x_bytes;
  phases_.phases[phases_.count++] = phase;
  return true;
}

int PersistentStep::input_bytes(const WeightTypes& weights, int k) const {
  int bytes = persistent_input_bytes(weights, k);
  for (int i = 0; i < phases_.count; ++i)
    bytes = std::max(bytes, persistent_input_bytes(weights, phases_.phases[i].k));
  return bytes;
}

bool PersistentStep::add_linear(const LinearCall& call) {
  const WeightView& w = call.parts[0].w;
  if (call.x.rows != 1 || !has_persistent_kernel(w.dtype) || w.cols % 8 != 0) return false;
  StepPhase phase = {};
  phase.kind = call.epilogue == Epilogue::kGated ? PhaseKind::kGated : PhaseKind::kLinear;
  phase.epilogue = call.epilogue;
  phase.activation = call.activation;
  phase.out_type = call.parts[0].out.dtype;
  phase.k = static_cast<int32_t>(w.cols);
  if (!find_input(call.x, values_of(w.dtype), phase)) return false;
  const bool gated = phase.kind == PhaseKind::kGated;
  int count = 0;
  for (int i = 0; i < call.count; ++i) {
    const LinearPart& part = call.parts[i];
    SPW_ASSERT(gated && i == 1 ? part.w.rows == w.rows
                               : part.out.rows == 1 && part.out.cols == part.w.rows);
    if (part.w.rows == 0) continue;  // this device has no rows of this matrix
    // Some thread blocks read x while others already write the output.
    if (!set_matrix(phase, count, part) || must_keep(part.out.data) || part.out.data == phase.x)
      return false;
    phase.out[count++] = part.out.data;
  }
  if (!add(phase, values_of(w.dtype), w.dtype, {})) return false;
  note_read(call.x);
  for (int i = 0; i < count; ++i) note_written(phase.out[i]);
  return true;
}

bool PersistentStep::add_append(const LinearCall& call, const AppendCall& append) {
  const KvLayerView& kv = append.kv;
  const WeightView& w = call.parts[0].w;
  const int64_t kv_rows = int64_t{kv.kv_heads} * kv.head_dim;
  const bool rotates = append.angles != nullptr;
  if (call.count != 3 || call.x.rows != 1 || !has_persistent_kernel(w.dtype) || w.cols % 8 != 0 ||
      kv.type != KvType::kF16 || (kv.head_dim != 64 && kv.head_dim != 128) ||
      (rotates && append.rope_dims != kv.head_dim) || append.batch.sequences != 1 ||
      w.rows % kv.head_dim != 0 || call.parts[1].w.rows != kv_rows ||
      call.parts[2].w.rows != kv_rows) {
    return false;
  }
  StepPhase phase = {};
  phase.kind = PhaseKind::kAppend;
  phase.epilogue = Epilogue::kStore;
  phase.out_type = call.parts[0].out.dtype;
  phase.k = static_cast<int32_t>(w.cols);
  if (!find_input(call.x, values_of(w.dtype), phase) || must_keep(call.parts[0].out.data))
    return false;
  SPW_ASSERT(call.parts[0].out.cols == w.rows);
  // Matrices of another type become a phase of their own with the same input.
  StepPhase other = phase;
  other.joined = true;
  std::optional<DType> other_type;
  for (int i = 0; i < 3; ++i) {
    const DType type = call.parts[i].w.dtype;
    const bool is_other = type != w.dtype;
    if (is_other && (type != other_type.value_or(type) || values_of(type) != values_of(w.dtype)))
      return false;
    if (is_other) other_type = type;
    if (!set_matrix(is_other ? other : phase, i, call.parts[i])) return false;
  }
  if (call.parts[0].out.data == phase.x) return false;  // the same reason as in add_linear()
  phase.out[0] = call.parts[0].out.data;
  phase.out[1] = kv.k;
  phase.out[2] = kv.v;
  phase.kv_table = append.planes;
  phase.layer = static_cast<int16_t>(kv.layer);
  Shared shared;
  shared.sequence = sequence_of(append.batch, kv);
  shared.appends = {append.angles, append.style == RopeStyle::kInterleaved, append.faults};
  const auto [sequence, appends, attends] = shared_;
  const WeightTypes types = weights_;
  const int x_bytes = phases_.x_bytes;
  if (!add(phase, values_of(w.dtype), w.dtype, shared)) return false;
  if (other_type) {
    for (int i = 0; i < 3; ++i) other.out[i] = phase.out[i];
    other.kv_table = phase.kv_table;
    other.layer = phase.layer;
    if (!add(other, values_of(w.dtype), *other_type, shared)) {  // then neither phase is kept
      --phases_.count;
      phases_.x_bytes = x_bytes;
      weights_ = types;
      shared_ = {sequence, appends, attends};
      return false;
    }
  }
  note_read(call.x);
  note_written(phase.out[0]);
  return true;
}

bool PersistentStep::add_attention(const AttentionCall& call) {
  const KvLayerView& kv = call.kv;
  const DType type = call.q.dtype;
  const int64_t chunks = int64_t{kv.kv_heads} * ((call.params.heads / kv.kv_heads + 3) / 4);
  if (call.q.rows != 1 || call.batch.sequences != 1 || !is_16_bit(type) ||
      kv.type != KvType::kF16 || (kv.head_dim != 64 && kv.head_dim != 128) ||
      call.params.top_k > 0 || call.out.dtype != type ||
      chunks > static_cast<int64_t>(kScratchCounterBytes / 4) - kMergesAt) {
    return false;
  }
  StepPhase phase = {};
  phase.kind = PhaseKind::kAttention;
  if (!find_input(call.q, type, phase) || phase.norm_weight != nullptr || must_keep(call.out.data))
    return false;
  phase.out[0] = call.out.data;
  phase.out[1] = kv.k;
  phase.out[2] = kv.v;
  phase.kv_table = call.planes;
  Shared shared;
  shared.sequence = sequence_of(call.batch, kv);
  shared.attends = {call.params.heads, kv.kv_heads, call.params.window, call.params.scale};
  if (!add(phase, type, std::nullopt, shared)) return false;
  note_written(phase.out[0]);
  return true;
}

void PersistentStep::launch(std::byte* scratch, cudaStream_t stream) {
  if (phases_.count == 0) return;
  phases_.sequence = shared_.sequence.value_or(PhaseSequence());
  phases_.appends = shared_.appends.value_or(PhaseAppends());
  phases_.attends = shared_.attends.value_or(PhaseAttends());
  phases_.scratch = scratch;
  const WeightTypes weights = weights_.empty() ? WeightTypes(values_) : weights_;
  phases_.stages = persistent_stages(gpu_, weights, phases_.x_bytes);
  const StepPhases step = std::exchange(phases_, {});
  shared_ = {};
  weights_ = {};
  launch_persistent(step, weights, gpu_, stream);
}

}  // namespace spillway::cuda
