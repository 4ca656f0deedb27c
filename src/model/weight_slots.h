// SPDX-License-Identifier: Apache-2.0
// Lists every weight of a network: a matrix or bias of an op of a list, with its shape; and defines
// what a family's files call them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_spec.h"
#include "storage/tensor_index.h"

namespace spillway {

// The lists of a network that are not layers.
inline constexpr int kEmbeddingList = -1, kHeadList = -2;

struct WeightSlot {
  int layer = 0;   // or kEmbeddingList, kHeadList
  int op = 0;      // its index in that list
  int matrix = 0;  // its index in that op
  bool is_bias = false;
  OpKind kind = OpKind::kLinear;  // the op's
  std::string_view name = {};     // the matrix's; a bias has the name of its matrix
  std::string_view op_name = {};
  bool by_position = false;  // for a table: looked up by position
  int64_t rows = 0, cols = 0;
  float scale = 1;  // MatrixSpec::scale

  bool in_layer() const { return layer >= 0; }
  // Vectors (norms, biases) have a plain type; matrices may be quantized.
  bool is_vector() const { return is_bias || kind == OpKind::kNorm; }
  // Whether it is the factor of a norm.
  bool is_norm_scale() const { return kind == OpKind::kNorm && !is_bias; }
  // Whether rows are looked up in it.
  bool is_table() const { return kind == OpKind::kEmbedding; }
  // Whether it is a matrix of a layer: a plan gives each of these a home, the memory where it
  // lives.
  bool is_layer_matrix() const { return in_layer() && !is_vector(); }
  // The shape as a tensor has it: a vector's elements are rows of one column.
  int64_t stored_rows() const { return is_vector() ? cols : rows; }
  int64_t stored_cols() const { return is_vector() ? 1 : cols; }
  bool same_op(const WeightSlot& other) const { return layer == other.layer && op == other.op; }
};

// The list that a slot's `layer` refers to.
const LayerSpec& list_of(const ModelSpec& spec, int layer);

// All weights of a network: first those outside the layers, tables before others, then layer by
// layer in the order of their use.
std::vector<WeightSlot> weight_slots(const ModelSpec& spec);

// The number of parameters; tied ones count once.
int64_t parameter_count(const ModelSpec& spec);

// How the weights that share a tensor are arranged in it, in the order of the family's table.
enum class TensorRows : uint8_t {
  kOwn,      // one weight is the whole tensor
  kStacked,  // all rows of one weight, then all rows of the next
  kPerHead,  // for each KV head its rows of one weight, then its rows of the next
};

// The name of a weight in a family's files; "{}" stands for the layer. A bias is "query.bias".
struct WeightName {
  std::string_view weight;
  std::string_view pattern;
  TensorRows rows = TensorRows::kOwn;
  bool transposed = false;  // the tensor is [in, out]
  bool less_one = false;    // a norm's weights are stored less one
};

// The place of a weight in its tensor. Rows are those of a matrix [out, in]; the elements of a
// vector count as rows.
struct TensorPlace {
  std::string name = {};    // the tensor's
  int64_t tensor_rows = 0;  // rows of all weights in it
  int64_t first = 0;        // the weight's first row
  RowGroups groups = {};
  bool transposed = false, less_one = false;
};

// Whether a tensor has this name, in any layer.
bool is_name_of(std::string_view pattern, std::string_view tensor);
bool is_name_for(const WeightName& name, const WeightSlot& slot);
// Throws kInternal if the table has no such weight, or a tensor cannot be divided that way.
TensorPlace place_of(std::span<const WeightName> names, const ModelSpec& spec,
                     const WeightSlot& slot);

}  // namespace spillway
