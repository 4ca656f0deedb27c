// SPDX-License-Identifier: Apache-2.0
// Describes a layer as a short list of ops: what each computes from what, with which matrices.
// Weights, events, prices and execution follow from the list (model/lowered_layer.h,
// model/weight_slots.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/op_kinds.h"

namespace spillway {

enum class OpKind : uint8_t {
  kEmbedding,   // looks up rows of a table by token or by position
  kGather,      // keeps the rows of the residual stream whose logits are wanted
  kNorm,        // normalizes a row, or each head of it
  kLinear,      // multiplies by matrices that share an input; the results lie side by side
  kRope,        // rotates q and k, in place
  kAttention,   // appends k and v to the layer's state; q attends to it
  kActivation,  // applies a function in place; a gated one halves the number of columns
  kAdd,         // adds its input to its output
};

// A place that an op reads or writes: the residual stream, or a scratch buffer by its number
// in the list.
using Place = int;
inline constexpr Place kResidual = -1;

// Names are stable, because plans, overrides and tuning files use them. They live as long as
// the program.
struct MatrixSpec {
  std::string_view name = {};
  int64_t rows = 0, cols = 0;  // a norm's weight has 1 row
  bool bias = false;
  std::string_view same_as = {};  // the matrix of another list that this one shares; empty: its own
  // For a norm's weight and bias: they are multiplied by this when they are loaded.
  float scale = 1;
  bool operator==(const MatrixSpec&) const = default;
};

struct NormSpec {
  NormKind kind = NormKind::kRms;
  float eps = 1e-5F;
  // For a norm of heads: its range of columns, in place. 0 columns: all columns are one row.
  int64_t first_column = 0, columns = 0;
  bool operator==(const NormSpec&) const = default;
};

// The input has q, k and v side by side; if the layer reads another one's state, only q.
struct AttentionSpec {
  int heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  int window = 0;        // positions that a row sees, including itself; 0: all before it
  bool chunked = false;  // a row sees the positions since the last multiple of `window` instead
  int state_back = 0;    // reads the state of the layer this many before it, and writes none
  float softcap = 0;     // scores are smoothly limited to this value; 0: they are not
  bool alibi = false, sinks = false;
  bool operator==(const AttentionSpec&) const = default;

  int64_t q_dim() const { return int64_t{heads} * head_dim; }
  int64_t kv_dim() const { return int64_t{kv_heads} * head_dim; }
  bool owns_state() const { return state_back == 0; }
  int64_t input_columns() const { return q_dim() + (owns_state() ? 2 * kv_dim() : 0); }
};

struct ActivationSpec {
  ActivationKind kind = ActivationKind::kSilu;
  bool gated = false;  // f(gate) * up, with the results of two matrices
  bool operator==(const ActivationSpec&) const = default;
};

// Which row of a table is looked up: that of the token, or that of its position plus `offset`.
struct EmbeddingSpec {
  bool by_position = false;
  int offset = 0;
  float scale = 1;  // of a token's row
  bool operator==(const EmbeddingSpec&) const = default;
};

struct OpSpec {
  OpKind kind = OpKind::kLinear;
  std::string_view name = {};  // "qkv", "mlp_down"; stable, like those of matrices
  Place input = kResidual, output = kResidual;
  std::vector<MatrixSpec> matrices = {};  // a linear op's; or a norm's weight, or the table
  // Parameters for the op's kind.
  NormSpec norm = {};
  AttentionSpec attention = {};
  ActivationSpec activation = {};
  EmbeddingSpec embedding = {};
  int rope = -1;  // its index in ModelSpec::ropes
  bool operator==(const OpSpec&) const = default;
};

struct Scratch {
  std::string_view name = {};
  bool f32 = false;  // as the residual stream; otherwise the type of activations between matrices
  bool operator==(const Scratch&) const = default;
};

struct LayerSpec {
  std::vector<Scratch> scratches = {};
  std::vector<OpSpec> ops = {};
  bool operator==(const LayerSpec&) const = default;

  // Returns nullptr if there is no such op.
  const OpSpec* find(std::string_view op) const;
  // Returns a scratch buffer's number, adding the buffer if it is new.
  Place place(std::string_view scratch, bool f32 = false);
};

// The list decides what exists before its first op: `residual_columns` columns of the residual
// stream, or nothing (0) before an embedding.
//
// Throws kInternal, naming list and op, if something is read before it is written, shapes do not
// agree, a name is used twice, or the result of a norm or gather is read after its input has
// changed (Ops::run_step: the result may never be in memory). Families are compiled in, so one that
// does not validate is a defect, and a test checks all of them.
void validate(const LayerSpec& layer, int64_t residual_columns, const std::string& where);

// The most columns that ops write to each scratch buffer. The list must be valid.
std::vector<int64_t> scratch_columns(const LayerSpec& layer, int64_t residual_columns);

}  // namespace spillway
