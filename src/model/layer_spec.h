// SPDX-License-Identifier: Apache-2.0
// A layer as a short list of ops: what is computed from what, with which matrices. Weights, events,
// prices and execution follow from it (model/lowered_layer.h, model/weight_slots.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/op_kinds.h"

namespace spillway {

enum class OpKind : uint8_t {
  kEmbedding,   // rows of a table, looked up by token or by position
  kGather,      // the rows of the residual stream whose logits are wanted
  kNorm,        // of a row, or of each head of it
  kLinear,      // products with matrices that share an input; the results lie side by side
  kRope,        // rotates q and k, in place
  kAttention,   // k and v join the layer's state; q attends to it
  kActivation,  // in place; a gated one leaves half of the columns
  kAdd,         // adds its input to its output
};

// Where an op reads or writes: the residual stream, or a scratch buffer of the list by its number.
using Place = int;
inline constexpr Place kResidual = -1;

// The names are stable: plans, overrides and tuning files use them. They live as long as the
// program.
struct MatrixSpec {
  std::string_view name = {};
  int64_t rows = 0, cols = 0;  // of a norm's weight: 1 row
  bool bias = false;
  std::string_view same_as = {};  // the matrix of another list that this one is; empty: its own
  bool operator==(const MatrixSpec&) const = default;
};

struct NormSpec {
  NormKind kind = NormKind::kRms;
  float eps = 1e-5F;
  // Of a norm of heads: the columns that it is about, in place. 0: all columns are one row.
  int64_t first_column = 0, columns = 0;
  bool operator==(const NormSpec&) const = default;
};

// The input has q, k and v side by side; of a layer that reads another's state, q alone.
struct AttentionSpec {
  int heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  int window = 0;        // positions that a row sees, itself included; 0: all before it
  bool chunked = false;  // a row sees those since the last multiple of `window` instead
  int state_back = 0;    // reads the state of the layer so many before its own, and writes none
  float softcap = 0;     // scores are bent to stay below it; 0: they are not
  bool alibi = false, sinks = false;
  bool operator==(const AttentionSpec&) const = default;

  int64_t q_dim() const { return int64_t{heads} * head_dim; }
  int64_t kv_dim() const { return int64_t{kv_heads} * head_dim; }
  bool owns_state() const { return state_back == 0; }
  int64_t input_columns() const { return q_dim() + (owns_state() ? 2 * kv_dim() : 0); }
};

struct ActivationSpec {
  ActivationKind kind = ActivationKind::kSilu;
  bool gated = false;  // f(gate) * up, of two matrices' results
  bool operator==(const ActivationSpec&) const = default;
};

// The row of a table: of a token, or of its position and so many.
struct EmbeddingSpec {
  bool by_position = false;
  int offset = 0;
  bool operator==(const EmbeddingSpec&) const = default;
};

struct OpSpec {
  OpKind kind = OpKind::kLinear;
  std::string_view name = {};  // "qkv", "mlp_down"; stable, as those of matrices
  Place input = kResidual, output = kResidual;
  std::vector<MatrixSpec> matrices = {};  // linear ones; a norm's weight; the table
  // What its kind asks for.
  NormSpec norm = {};
  AttentionSpec attention = {};
  ActivationSpec activation = {};
  EmbeddingSpec embedding = {};
  int rope = -1;  // its number in ModelSpec::ropes
  bool operator==(const OpSpec&) const = default;
};

struct Scratch {
  std::string_view name = {};
  bool f32 = false;  // as the residual stream is; else of the type between matrices
  bool operator==(const Scratch&) const = default;
};

struct LayerSpec {
  std::vector<Scratch> scratches = {};
  std::vector<OpSpec> ops = {};
  bool operator==(const LayerSpec&) const = default;

  // nullptr where there is none.
  const OpSpec* find(std::string_view op) const;
  // Adds it where it is new.
  Place place(std::string_view scratch, bool f32 = false);
};

// Which list it is decides what there is before its first op: `residual_columns` of the residual
// stream, or nothing (0), as before an embedding.
//
// Throws kInternal, naming list and op, where something is read before it is written, shapes do not
// agree, a name is used twice, or what a norm or gather gave is read after its input has changed
// (Ops::run_step: it may never be in memory). Families are compiled in: one that does not validate
// is a defect, and a test goes over all of them.
void validate(const LayerSpec& layer, int64_t residual_columns, const std::string& where);

// The columns that ops write to each scratch buffer, at most. Of a list that is valid.
std::vector<int64_t> scratch_columns(const LayerSpec& layer, int64_t residual_columns);

}  // namespace spillway
