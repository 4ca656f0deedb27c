// SPDX-License-Identifier: Apache-2.0
// The ops of one decoder step, which a device computes.
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

// The kinds of kernel that compute linear(). kGemv computes one token after the other. kFlat lets a
// few tokens share a pass over the weights. kGemm, for many tokens, prepares blocks of weights for
// matrix instructions.
enum class LinearKernel : uint8_t { kGemv, kFlat, kGemm };
class TuningTable;
struct ScoreBounds;

// One layer's paged KV cache: planes [block][kv_head] of pages of `type` (tensor/kv_format.h).
struct KvLayerView {
  KvType type = KvType::kF16;
  int64_t blocks = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  // A second V plane, the home of V that was not copied to the device: host memory that ops can
  // read in place. Spans name its blocks in SequenceSpan::home. Null if there are none.
  const std::byte* home_v = nullptr;
  int64_t home_blocks = 0;
  int layer = 0;  // the layer that a KvFault names

  // Returns the bytes of one block in one plane.
  int64_t block_bytes() const { return kv_heads * kv_page_bytes(type, head_dim); }
};

// The addresses of a layer's K and V planes.
struct KvPlanes {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
};

// The rows of a step that belong to one sequence: rows [first_row, first_row + rows) are its tokens
// at positions [start, start + rows). `block_table[i]` is the KV block of positions [16 i, 16 i +
// 16); the table covers start + rows.
struct SequenceSpan {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t start = 0;
  std::span<const int32_t> block_table;
  // V of the first home.size() of these blocks is not in KvLayerView::v but in home_v, under these
  // ids. Only spans that attend to few of their positions (is_sparse) have such blocks; positions
  // that the span appends are never in them.
  std::span<const int32_t> home = {};
  // Whether the rows belong to an answer, not to a prompt. If AttentionParams::top_k is set, a span
  // of an answer has one row; a sequence with several rows has several spans over the same table.
  bool generates = false;
};

struct AttentionParams {
  int heads = 0;    // a multiple of kv_heads: GQA
  float scale = 1;  // applied to q . k
  int window = 0;   // each row attends to this many last positions, itself included; 0 = all
  // The share of these positions that generating rows attend to, per query head: those with the
  // largest scores, the first among equal ones (device/sparse_attention.h). 0 = all.
  float top_k = 0;
};

// One of several linear layers that share their input.
struct Projection {
  WeightView w;     // [n, k]
  WeightView bias;  // [1, n] or empty
  Activations out;  // [tokens, n]
};

// A set of at most two weight types: files of mixed types have two for a kind of matrix.
class WeightTypes {
 public:
  WeightTypes() = default;
  WeightTypes(DType type) : types_{type, type}, count_(1) {}  // NOLINT: one is a set, too
  bool empty() const { return count_ == 0; }
  bool contains(DType type) const {
    return count_ > 0 && (types_[0] == type || types_[count_ - 1] == type);
  }
  // Returns false and changes nothing if that would make three types.
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

// Facts about the matrices of a model that tokens are multiplied with, wherever these are stored.
struct MatrixFacts {
  bool has_f32 = true;
  bool has_16_bit = true;   // F16 or BF16
  int64_t layer_bytes = 0;  // of all matrices of an average layer
};

// The inputs of one step's ops about its tokens, all together, so that a device with memory of its
// own uploads them once. Ops of that step are given these very spans.
struct StepBatch {
  std::span<const int32_t> ids;         // [tokens]
  std::span<const int32_t> positions;   // [tokens]
  std::span<const int32_t> table_rows;  // [tokens], rows of the learned position table
  std::span<const int32_t> logit_rows;  // rows whose logits are needed
  std::span<const SequenceSpan> spans;
  // Sequences of the same step whose KV is in other planes than that of `spans`, as lists that
  // attention takes one at a time.
  std::span<const std::span<const SequenceSpan>> other_spans = {};
  // The graph key: a number that stands for all addresses that the step's ops use besides these
  // spans (device/address_epoch.h). Two steps with the same key and shape differ only in the values
  // above and in `kv`, so a device may record one and replay it for the other. 0 means never.
  uint64_t graph_key = 0;
  // Facts about the model's matrices that the choice of kernels may depend on. `layer_types` is
  // empty if the layers have more types than WeightTypes holds.
  MatrixFacts matrices = {};
  WeightTypes layer_types = {};
  // [layers], in a step with a graph key: where ops find each layer's KV (the entry at
  // KvLayerView::layer has the same addresses as the view). It is uploaded with the rest, so that
  // layers may be at other addresses in the next step although it is replayed.
  std::span<const KvPlanes> kv = {};
};

// A graph segment of a step. Work that is not an op runs between two segments, once everything
// before it is queued.
struct StepPart {
  std::function<void()> before;  // called in every step; empty if there is nothing to do
  std::function<void()> ops;     // calls ops alone
};

// Adjusts one token's logit before sampling: l += bias; then l is divided (positive) or multiplied
// (negative) by `repetition`; then l -= penalty.
struct LogitAdjustment {
  int32_t id = 0;
  float bias = 0;
  float repetition = 1;
  float penalty = 0;
};

// Says how to sample a token from a row of logits: adjustments, temperature, top-k, top-p, min-p,
// and the token at `uniform` of the kept probability, in the order of ids. Temperature 0 means the
// most likely token.
struct SampleRow {
  float temperature = 0;
  int32_t top_k = 0;  // 0 = all
  float top_p = 1;
  float min_p = 0;
  double uniform = 0;  // in [0, 1)
  int logprobs = -1;   // -1: none; 0: of the token; n <= kMostLogprobs: also of the n most likely
  std::span<const LogitAdjustment> adjustments;  // at most one for each token
};

struct SampledToken {
  int32_t id = -1;    // -1: a logit is NaN or infinity, or all are minus infinity
  Logprobs logprobs;  // if they were requested and there is a token
};

// The score of one token in a row of logits.
struct TokenScore {
  // The natural logarithm of the token's probability; NaN if a logit is NaN or infinity, or all are
  // minus infinity.
  float logprob = 0;
  int32_t best = 0;  // the most likely token, the first among equal ones, if there is one
};

// The ops of a device. They run in call order. Activations are F32 on a CPU; on other devices they
// are as Device::activation_type() says, with the residual stream and logits in F32. Views must not
// overlap unless an op says so. Shapes are checked where a wrong one would touch foreign memory
// (kInternal: the caller validated the model).
class Ops {
 public:
  virtual ~Ops() = default;

  // In deterministic mode one kernel variant is used for any batch, so that a row's result is
  // bit-equal alone and among others. It is slower.
  virtual void set_deterministic(bool on) = 0;

  // Sets the numbers of tokens at which linear() goes from one kind of kernel to the next
  // (tuning.h); null leaves that to the device. The table must outlive its use. Deterministic mode
  // ignores it.
  virtual void set_tuning(const TuningTable* /*table*/) {}
  // Sets the bounds of attention scores of the current model; null if nothing is known.
  virtual void set_score_bounds(const ScoreBounds* /*bounds*/) {}
  // Returns the kind of kernel that linear() takes for `tokens` rows of x.
  virtual LinearKernel linear_kernel(const WeightView& /*w*/, int64_t tokens) const {
    return tokens == 1 ? LinearKernel::kGemv : LinearKernel::kFlat;
  }

  // Announces the largest step that will be computed: a device allocates the memory for it now, and
  // not in the middle of the work. Throws kOutOfMemory.
  struct StepLimits {
    int64_t tokens = 0;
    int64_t widest = 0;          // columns of a matrix that linear() multiplies with
    int64_t largest_matrix = 0;  // elements
  };
  virtual void prepare(const StepLimits& /*limits*/) {}

  // Computes a step, segment by segment. The order of ops must depend only on the batch's shape and
  // graph key, and so must the segments. A device that has recorded all segments before may leave
  // out calling them. In a step with a graph key only ops read what ops compute, and the results of
  // norm() and gather_rows() are read before their input changes, because they may never be written
  // to memory.
  virtual void run_step(const StepBatch& /*batch*/, std::span<const StepPart> parts) {
    for (const StepPart& part : parts) {
      if (part.before) part.before();
      part.ops();
    }
  }
  // Computes a step of one segment.
  void run_step(const StepBatch& batch, const std::function<void()>& ops) {
    const StepPart all{{}, ops};
    run_step(batch, std::span<const StepPart>(&all, 1));
  }

  // Sets out[i] = table[ids[i]], or adds it to out[i] when accumulating. table [entries, dim], out
  // [ids, dim]. Ids are in range.
  virtual void embed(const WeightView& table, std::span<const int32_t> ids, const Activations& out,
                     LinearMode mode) = 0;

  // Computes out = norm(x) * weight + bias, row by row. weight, bias [1, dim]; bias may be empty.
  // out may be x.
  virtual void norm(NormKind kind, const Activations& x, const WeightView& weight,
                    const WeightView& bias, float eps, const Activations& out) = 0;
  // Computes out += norm(x) * weight + bias. x and out are F32; out may not be x.
  virtual void add_norm(NormKind kind, const Activations& x, const WeightView& weight,
                        const WeightView& bias, float eps, const Activations& out) = 0;
  // Computes x = x * factor. x is F32.
  virtual void scale(const Activations& x, float factor) = 0;

  // Applies norm() to each head of x [tokens, heads * head_dim] separately, in place. weight [1,
  // head_dim].
  virtual void head_norm(NormKind kind, const Activations& x, const WeightView& weight, float eps) {
    for (int64_t first = 0; first < x.cols; first += weight.cols) {
      const Activations head = x.columns(first, weight.cols);
      norm(kind, head, weight, {}, eps, head);
    }
  }

  // Computes out (+)= x * w^T + bias. w [n, k], x [tokens, k], out [tokens, n]; bias [1, n] or
  // empty.
  virtual void linear(const WeightView& w, const WeightView& bias, const Activations& x,
                      const Activations& out, LinearMode mode) = 0;

  // Computes several linear layers with the same input.
  virtual void linears(std::span<const Projection> parts, const Activations& x) {
    for (const Projection& part : parts) linear(part.w, part.bias, x, part.out, LinearMode::kStore);
  }
  // Computes up.out = f(x * up^T + bias), and in gated_linear() up.out = f(x * gate^T + bias) * (x
  // * up^T + bias). gate.out is scratch.
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

  // Sets out[i] to the (cos, sin) pairs of position[i] * inverse_frequency[j], times `scale`. out
  // [positions, 2 * frequencies].
  virtual void rope_angles(std::span<const int32_t> positions,
                           std::span<const float> inverse_frequency, float scale,
                           const Activations& out) = 0;
  // Rotates the first `angles.cols` elements of each head of x [tokens, heads * head_dim], in
  // place.
  virtual void rope(const Activations& x, int head_dim, const Activations& angles,
                    RopeStyle style) = 0;

  // Writes k, v [rows, kv_heads * head_dim] of every span into its blocks. What the KV type cannot
  // hold becomes NaN (KvStored), and so does attention to it.
  virtual void kv_append(const Activations& k, const Activations& v, const KvLayerView& kv,
                         std::span<const SequenceSpan> spans) = 0;
  // Applies rope() to q and k (unless `angles` is empty), then kv_append(): the work between the
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
  // Computes linears() of these three, then rope_and_append() of the results. q.out is then
  // rotated; the contents of k.out and v.out are unspecified.
  virtual void project_and_append(const Projection& q, const Projection& k, const Projection& v,
                                  const Activations& x, const Activations& angles, RopeStyle style,
                                  const KvLayerView& kv, std::span<const SequenceSpan> spans) {
    const Projection parts[] = {q, k, v};
    linears(parts, x);
    rope_and_append(q.out, k.out, v.out, angles, style, kv, spans);
  }
  // Returns the first number since the last call that was beyond the KV type's range; waits for
  // everything queued.
  virtual std::optional<KvFault> take_kv_fault() { return std::nullopt; }
  // Computes causal attention of q [rows, heads * head_dim] over each span's KV (appended before)
  // into out, of q's shape. If anything that a head of a row takes part in is NaN or infinite, its
  // result is NaN.
  virtual void attention(const Activations& q, const KvLayerView& kv,
                         std::span<const SequenceSpan> spans, const AttentionParams& params,
                         const Activations& out) = 0;

  // Computes x = f(x).
  virtual void activate(ActivationKind kind, const Activations& x) = 0;
  // Computes out = f(gate) * up. out may be gate or up.
  virtual void gated_activate(ActivationKind kind, const Activations& gate, const Activations& up,
                              const Activations& out) = 0;
  // Sets out[i] = x[rows[i]], in out's type.
  virtual void gather_rows(const Activations& x, std::span<const int32_t> rows,
                           const Activations& out) = 0;

  // Sets to = from, in to's type. If reads_pinned_memory(), either may be host memory that
  // try_pin() took: this is how CPU and GPU exchange data in the middle of a step.
  virtual void copy(const Activations& from, const Activations& to) = 0;

  // Sets scores[i] to the score of token ids[i] in row i of logits [rows, vocab] F32. Waits for the
  // result; only that is copied to the host.
  virtual void score(const Activations& logits, std::span<const int32_t> ids,
                     std::span<TokenScore> scores) = 0;

  // Returns whether the device has sample(); if not, the caller samples.
  virtual bool can_sample() const { return false; }
  // Sets tokens[i] to the token sampled from row i of logits [rows, vocab] F32, which may be
  // overwritten. Waits for the result; only that is copied to the host.
  virtual void sample(const Activations& /*logits*/, std::span<const SampleRow> /*rows*/,
                      std::span<SampledToken> /*tokens*/) {
    SPW_ASSERT(!"this device leaves sampling to the host");
  }
};

}  // namespace spillway
