// SPDX-License-Identifier: Apache-2.0
// What a device computes: the ops of one decoder step.
//
// Numerics, for every implementation: the result of a row depends only on that row's inputs, the
// op's full shape and type, and the kernel variant, never on which slice of a matrix is computed or
// where it lives. In deterministic mode it does not depend on the other rows of the batch either
// (see Ops::set_deterministic).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/kv_format.h"
#include "tensor/op_kinds.h"
#include "tensor/tensor_view.h"

namespace spillway {

enum class LinearMode : uint8_t { kStore, kAccumulate };

// The kinds of kernel behind linear(): one token after the other; few tokens that share a pass over
// the weights; many, with blocks of weights prepared for matrix instructions.
enum class LinearKernel : uint8_t { kGemv, kFlat, kGemm };
class TuningTable;

// One layer's paged KV: planes [block][kv_head] of pages of `type` (tensor/kv_format.h).
struct KvLayerView {
  KvType type = KvType::kF16;
  int64_t blocks = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::byte* k = nullptr;
  std::byte* v = nullptr;

  // Bytes of one block in one plane.
  int64_t block_bytes() const { return kv_heads * kv_page_bytes(type, head_dim); }
};

// The rows of a step that belong to one sequence: rows [first_row, first_row + rows) are its tokens
// at positions [start, start + rows). `block_table[i]` is the KV block of positions [16 i, 16 i +
// 16); it covers start + rows.
struct SequenceSpan {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t start = 0;
  std::span<const int32_t> block_table;
};

struct AttentionParams {
  int heads = 0;    // a multiple of kv_heads: GQA
  float scale = 1;  // applied to q . k
  int window = 0;   // each row sees this many last positions, itself included; 0 = all before it
};

// Ops run in call order. Activations are F32 on a CPU. Views must not overlap unless an op says so.
// Shapes are checked where a wrong one would touch foreign memory (kInternal: the caller validated
// the model).
class Ops {
 public:
  virtual ~Ops() = default;

  // One kernel variant whatever the batch: a row's result is then bit-equal alone and among others.
  // Slower.
  virtual void set_deterministic(bool on) = 0;

  // Where linear() goes from one kind of kernel to the next (tuning.h); null: where the device
  // thinks it should. The table must outlive its use. Deterministic mode does not look at it.
  virtual void set_tuning(const TuningTable* /*table*/) {}
  // The kind that linear() takes for `tokens` rows of x.
  virtual LinearKernel linear_kernel(const WeightView& /*w*/, int64_t tokens) const {
    return tokens == 1 ? LinearKernel::kGemv : LinearKernel::kFlat;
  }

  // out[i] = table[ids[i]] (added to out[i] when accumulating). table [entries, dim], out [ids,
  // dim]. Ids are in range.
  virtual void embed(const WeightView& table, std::span<const int32_t> ids, const Activations& out,
                     LinearMode mode) = 0;

  // out = norm(x) * weight + bias, row by row. weight, bias [1, dim]; bias may be empty. out may be
  // x.
  virtual void norm(NormKind kind, const Activations& x, const WeightView& weight,
                    const WeightView& bias, float eps, const Activations& out) = 0;

  // out (+)= x * w^T + bias. w [n, k], x [tokens, k], out [tokens, n]; bias [1, n] or empty.
  virtual void linear(const WeightView& w, const WeightView& bias, const Activations& x,
                      const Activations& out, LinearMode mode) = 0;

  // out[i] = (cos, sin) pairs of position[i] * inverse_frequency[j], times `scale`. out [positions,
  // 2 * frequencies].
  virtual void rope_angles(std::span<const int32_t> positions,
                           std::span<const float> inverse_frequency, float scale,
                           const Activations& out) = 0;
  // Rotates the first `angles.cols` elements of each head of x [tokens, heads * head_dim], in
  // place.
  virtual void rope(const Activations& x, int head_dim, const Activations& angles,
                    RopeStyle style) = 0;

  // Writes k, v [rows, kv_heads * head_dim] of every span into its blocks.
  virtual void kv_append(const Activations& k, const Activations& v, const KvLayerView& kv,
                         std::span<const SequenceSpan> spans) = 0;
  // Causal attention of q [rows, heads * head_dim] over each span's KV (appended before), into out
  // of q's shape.
  virtual void attention(const Activations& q, const KvLayerView& kv,
                         std::span<const SequenceSpan> spans, const AttentionParams& params,
                         const Activations& out) = 0;

  // x = f(x).
  virtual void activate(ActivationKind kind, const Activations& x) = 0;
  // out = f(gate) * up. out may be gate or up.
  virtual void gated_activate(ActivationKind kind, const Activations& gate, const Activations& up,
                              const Activations& out) = 0;
  // out[i] = x[rows[i]].
  virtual void gather_rows(const Activations& x, std::span<const int32_t> rows,
                           const Activations& out) = 0;
};

}  // namespace spillway
