// SPDX-License-Identifier: Apache-2.0
// What a device computes: the ops of one decoder step.
//
// Numerics, for every implementation: the result of a row depends only on that row's inputs, the
// op's full shape and type, and the kernel variant, never on which slice of a matrix is computed or
// where it lives. In deterministic mode it does not depend on the other rows of the batch either
// (see Ops::set_deterministic).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "device/kv_fault.h"
#include "device/logprobs.h"
#include "tensor/kv_format.h"
#include "tensor/op_kinds.h"
#include "tensor/tensor_view.h"

namespace spillway {

enum class LinearMode : uint8_t { kStore, kAccumulate };

// The kinds of kernel behind linear(): one token after the other; few tokens that share a pass over
// the weights; many, with blocks of weights prepared for matrix instructions.
enum class LinearKernel : uint8_t { kGemv, kFlat, kGemm };
class TuningTable;
struct ScoreBounds;

// One layer's paged KV: planes [block][kv_head] of pages of `type` (tensor/kv_format.h).
struct KvLayerView {
  KvType type = KvType::kF16;
  int64_t blocks = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  // A second V plane, in memory that ops can read though it is not theirs: what spans have there
  // (SequenceSpan::home) was not moved. Null: none have.
  const std::byte* home_v = nullptr;
  int64_t home_blocks = 0;
  int layer = 0;  // that KvFault names

  // Bytes of one block in one plane.
  int64_t block_bytes() const { return kv_heads * kv_page_bytes(type, head_dim); }
};

// Where a layer's K and V are.
struct KvPlanes {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
};

// The rows of a step that belong to one sequence: rows [first_row, first_row + rows) are its tokens
// at positions [start, start + rows). `block_table[i]` is the KV block of positions [16 i, 16 i +
// 16); it covers start + rows.
struct SequenceSpan {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t start = 0;
  std::span<const int32_t> block_table;
  // V of the first of these blocks, as many as `home` has, is not in KvLayerView::v but in home_v,
  // by these ids. Only spans that attend to few of their positions (is_sparse) have such; what they
  // append is never among it.
  std::span<const int32_t> home = {};
  // The rows belong to an answer, not to a prompt. Where AttentionParams::top_k is set, such a span
  // has one row; a sequence with several has several spans over the same table.
  bool generates = false;
};

struct AttentionParams {
  int heads = 0;    // a multiple of kv_heads: GQA
  float scale = 1;  // applied to q . k
  int window = 0;   // each row sees this many last positions, itself included; 0 = all before it
  // The share of these positions that rows which generate attend to, per query head: those with the
  // largest scores, of equal ones the first (device/sparse_attention.h). 0 = all.
  float top_k = 0;
};

// A linear layer among several that share their input.
struct Projection {
  WeightView w;     // [n, k]
  WeightView bias;  // [1, n] or empty
  Activations out;  // [tokens, n]
};

// The types that some matrices have, where they are few: files of mixed types have two.
class WeightTypes {
 public:
  WeightTypes() = default;
  WeightTypes(DType type) : types_{type, type}, count_(1) {}  // NOLINT: one is a set, too
  bool empty() const { return count_ == 0; }
  bool contains(DType type) const {
    return count_ > 0 && (types_[0] == type || types_[count_ - 1] == type);
  }
  // False, and nothing has changed, where that would be three.
  [[nodiscard]] bool try_add(DType type) {
    if (contains(type)) return true;
    if (count_ == static_cast<int>(types_.size())) return false;
    types_[static_cast<size_t>(count_++)] = type;
    return true;
  }
  std::span<const DType> all() const { return {types_.data(), static_cast<size_t>(count_)}; }

 private:
  std::array<DType, 2> types_ = {};
  int count_ = 0;
};

// What matrices a model has that tokens are multiplied with, wherever they are.
struct MatrixFacts {
  bool has_f32 = true;
  bool has_16_bit = true;   // F16 or BF16
  int64_t layer_bytes = 0;  // of all matrices of a layer, on average
};

// What the ops of one step are told about its tokens, all of it at once: a device with memory of
// its own uploads it once. Ops of that step are given these very spans.
struct StepBatch {
  std::span<const int32_t> ids;         // [tokens]
  std::span<const int32_t> positions;   // [tokens]
  std::span<const int32_t> table_rows;  // [tokens], of the learned positions
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted
  std::span<const SequenceSpan> spans;
  // Sequences of the same step whose KV lies in other planes than that of `spans`: lists that
  // attention takes one at a time.
  std::span<const std::span<const SequenceSpan>> other_spans = {};
  // Of the memory that the step's ops use besides, a number that stands for all of its addresses
  // (device/generation.h): two steps with the same program and shape differ only in the values
  // above and in `kv`, so a device may record one and replay it for the other. 0: never.
  uint64_t program = 0;
  // Facts about the model's matrices, on which it may depend which kernels are taken; the types of
  // its layers are empty where these are more than WeightTypes holds.
  MatrixFacts matrices = {};
  WeightTypes layer_types = {};
  // [layer] Of a step with a program: where ops find each layer's KV (KvLayerView::layer, which has
  // the same). It is uploaded with the rest, so that layers may lie elsewhere in the next step
  // though that is replayed.
  std::span<const KvPlanes> kv = {};
};

// A piece of a step. Work that is no op comes between two, when all that was before it is queued.
struct StepPart {
  std::function<void()> before;  // called in every step; empty: nothing to do
  std::function<void()> ops;     // calls ops alone
};

// What the host adds to a logit before a token is drawn: l += bias; then l is divided (positive) or
// multiplied (negative) by `repetition`; then l -= penalty.
struct LogitAdjustment {
  int32_t id = 0;
  float bias = 0;
  float repetition = 1;
  float penalty = 0;
};

// How a row of logits becomes a token: adjustments, temperature, top-k, top-p, min-p, and the draw
// at `uniform` of the kept probability, in the order of ids. Temperature 0: the most likely token.
struct SampleRow {
  float temperature = 0;
  int32_t top_k = 0;  // 0 = all
  float top_p = 1;
  float min_p = 0;
  double uniform = 0;  // in [0, 1)
  int logprobs = -1;   // -1: none; 0: of the token; n: also of the n most likely, kMostLogprobs
  std::span<const LogitAdjustment> adjustments;  // no two of one token
};

struct SampledToken {
  int32_t id = -1;    // -1: a logit is NaN or infinity, or all are minus infinity
  Logprobs logprobs;  // where they were asked for and there is a token
};

// What a row of logits says of one token.
struct TokenScore {
  // The natural logarithm of its probability; NaN where a logit is NaN or infinity, or all are
  // minus infinity.
  float logprob = 0;
  int32_t best = 0;  // the most likely token, of equally likely ones the first; where there is one
};

// Ops run in call order. Activations are F32 on a CPU; on others as Device::activation_type() says,
// with the residual stream and logits in F32. Views must not overlap unless an op says so. Shapes
// are checked where a wrong one would touch foreign memory (kInternal: the caller validated the
// model).
class Ops {
 public:
  virtual ~Ops() = default;

  // One kernel variant whatever the batch: a row's result is then bit-equal alone and among others.
  // Slower.
  virtual void set_deterministic(bool on) = 0;

  // Where linear() goes from one kind of kernel to the next (tuning.h); null: where the device
  // thinks it should. The table must outlive its use. Deterministic mode does not look at it.
  virtual void set_tuning(const TuningTable* /*table*/) {}
  // What attention may expect of the model at hand; null: nothing is known.
  virtual void set_score_bounds(const ScoreBounds* /*bounds*/) {}
  // The kind that linear() takes for `tokens` rows of x.
  virtual LinearKernel linear_kernel(const WeightView& /*w*/, int64_t tokens) const {
    return tokens == 1 ? LinearKernel::kGemv : LinearKernel::kFlat;
  }

  // The largest step that is going to be computed: a device takes the memory for it now, and not in
  // the middle of the work. Throws kOutOfMemory.
  struct StepLimits {
    int64_t tokens = 0;
    int64_t widest = 0;          // columns of a matrix that linear() multiplies with
    int64_t largest_matrix = 0;  // elements
  };
  virtual void prepare(const StepLimits& /*limits*/) {}

  // Computes a step, part by part: ops are called in an order that depends on the batch's shape and
  // program alone, and so do the parts. Calling them may be left out where the device has recorded
  // all parts before. In a step with a program nothing but ops looks at what ops compute, and what
  // norm() and gather_rows() give is read before their input changes: it may never be in memory.
  virtual void run_step(const StepBatch& /*batch*/, std::span<const StepPart> parts) {
    for (const StepPart& part : parts) {
      if (part.before) part.before();
      part.ops();
    }
  }
  // In one part.
  void run_step(const StepBatch& batch, const std::function<void()>& ops) {
    const StepPart all{{}, ops};
    run_step(batch, std::span<const StepPart>(&all, 1));
  }

  // out[i] = table[ids[i]] (added to out[i] when accumulating). table [entries, dim], out [ids,
  // dim]. Ids are in range.
  virtual void embed(const WeightView& table, std::span<const int32_t> ids, const Activations& out,
                     LinearMode mode) = 0;

  // out = norm(x) * weight + bias, row by row. weight, bias [1, dim]; bias may be empty. out may be
  // x.
  virtual void norm(NormKind kind, const Activations& x, const WeightView& weight,
                    const WeightView& bias, float eps, const Activations& out) = 0;

  // norm() of each head of x [tokens, heads * head_dim] by itself, in place. weight [1, head_dim].
  virtual void head_norm(NormKind kind, const Activations& x, const WeightView& weight, float eps) {
    for (int64_t first = 0; first < x.cols; first += weight.cols) {
      const Activations head = x.columns(first, weight.cols);
      norm(kind, head, weight, {}, eps, head);
    }
  }

  // out (+)= x * w^T + bias. w [n, k], x [tokens, k], out [tokens, n]; bias [1, n] or empty.
  virtual void linear(const WeightView& w, const WeightView& bias, const Activations& x,
                      const Activations& out, LinearMode mode) = 0;

  // Several linear layers with the same input.
  virtual void linears(std::span<const Projection> parts, const Activations& x) {
    for (const Projection& part : parts) linear(part.w, part.bias, x, part.out, LinearMode::kStore);
  }
  // up.out = f(x * up^T + bias); with a gate, f(x * gate^T + bias) * (x * up^T + bias). gate.out is
  // scratch.
  virtual void activated_linear(ActivationKind kind, const Projection& up, const Activations& x) {
    linear(up.w, up.bias, x, up.out, LinearMode::kStore);
    activate(kind, up.out);
  }
  virtual void gated_linear(ActivationKind kind, const Projection& gate, const Projection& up,
                            const Activations& x) {
    linear(up.w, up.bias, x, up.out, LinearMode::kStore);
    linear(gate.w, gate.bias, x, gate.out, LinearMode::kStore);
    gated_activate(kind, gate.out, up.out, up.out);
  }

  // out[i] = (cos, sin) pairs of position[i] * inverse_frequency[j], times `scale`. out [positions,
  // 2 * frequencies].
  virtual void rope_angles(std::span<const int32_t> positions,
                           std::span<const float> inverse_frequency, float scale,
                           const Activations& out) = 0;
  // Rotates the first `angles.cols` elements of each head of x [tokens, heads * head_dim], in
  // place.
  virtual void rope(const Activations& x, int head_dim, const Activations& angles,
                    RopeStyle style) = 0;

  // Writes k, v [rows, kv_heads * head_dim] of every span into its blocks. What the KV type cannot
  // hold is NaN there (KvStored): attention to it gives no numbers.
  virtual void kv_append(const Activations& k, const Activations& v, const KvLayerView& kv,
                         std::span<const SequenceSpan> spans) = 0;
  // rope() of q and k (not where `angles` is empty), then kv_append(): what comes between the
  // projections and attention.
  virtual void rope_and_append(const Activations& q, const Activations& k, const Activations& v,
                               const Activations& angles, RopeStyle style, const KvLayerView& kv,
                               std::span<const SequenceSpan> spans) {
    if (!angles.empty()) {
      rope(q, kv.head_dim, angles, style);
      rope(k, kv.head_dim, angles, style);
    }
    kv_append(k, v, kv, spans);
  }
  // linears() of these three, then rope_and_append() of what they give. q.out is then rotated; what
  // k.out and v.out hold is not said.
  virtual void project_and_append(const Projection& q, const Projection& k, const Projection& v,
                                  const Activations& x, const Activations& angles, RopeStyle style,
                                  const KvLayerView& kv, std::span<const SequenceSpan> spans) {
    const Projection parts[] = {q, k, v};
    linears(parts, x);
    rope_and_append(q.out, k.out, v.out, angles, style, kv, spans);
  }
  // The first number that was beyond the KV type's range since the last call; waits for all that is
  // queued.
  virtual std::optional<KvFault> take_kv_fault() { return std::nullopt; }
  // Causal attention of q [rows, heads * head_dim] over each span's KV (appended before), into out
  // of q's shape. Where something that a head of a row takes part in is no number (NaN or
  // infinite), its result is NaN.
  virtual void attention(const Activations& q, const KvLayerView& kv,
                         std::span<const SequenceSpan> spans, const AttentionParams& params,
                         const Activations& out) = 0;

  // x = f(x).
  virtual void activate(ActivationKind kind, const Activations& x) = 0;
  // out = f(gate) * up. out may be gate or up.
  virtual void gated_activate(ActivationKind kind, const Activations& gate, const Activations& up,
                              const Activations& out) = 0;
  // out[i] = x[rows[i]], in out's type.
  virtual void gather_rows(const Activations& x, std::span<const int32_t> rows,
                           const Activations& out) = 0;

  // to = from, in to's type. Either may be host memory that try_pin() took, where
  // reads_pinned_memory(): what CPU and GPU hand each other in the middle of a step.
  virtual void copy(const Activations& from, const Activations& to) = 0;

  // scores[i] = what row i of logits [rows, vocab] F32 says of token ids[i]. Waits for the result:
  // only that comes to the host.
  virtual void score(const Activations& logits, std::span<const int32_t> ids,
                     std::span<TokenScore> scores) = 0;

  // Whether there is sample(); elsewhere the caller draws.
  virtual bool can_sample() const { return false; }
  // tokens[i] = the token drawn from row i of logits [rows, vocab] F32, which may be changed. Waits
  // for the result: only that comes to the host.
  virtual void sample(const Activations& /*logits*/, std::span<const SampleRow> /*rows*/,
                      std::span<SampledToken> /*tokens*/) {
    SPW_ASSERT(!"this device leaves sampling to the host");
  }
};

}  // namespace spillway
