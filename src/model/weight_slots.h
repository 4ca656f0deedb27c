// SPDX-License-Identifier: Apache-2.0
// Every weight of a network: a matrix or bias of an op of a list, with its shape. And how a
// family's files call them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_spec.h"

namespace spillway {

// The lists of a network that are no layer.
inline constexpr int kEmbeddingList = -1, kHeadList = -2;

struct WeightSlot {
  int layer = 0;   // or kEmbeddingList, kHeadList
  int op = 0;      // in that list
  int matrix = 0;  // of that op
  bool is_bias = false;
  OpKind kind = OpKind::kLinear;  // of the op
  std::string_view name = {};     // the matrix's; a bias has that of its matrix
  std::string_view op_name = {};
  bool by_position = false;  // of a table: looked up by position
  int64_t rows = 0, cols = 0;

  bool in_layer() const { return layer >= 0; }
  // Vectors (norms, biases) are kept in a plain type; matrices may be quantized.
  bool is_vector() const { return is_bias || kind == OpKind::kNorm; }
  // What norms multiply with.
  bool is_norm_scale() const { return kind == OpKind::kNorm && !is_bias; }
  // A table in which rows are looked up.
  bool is_table() const { return kind == OpKind::kEmbedding; }
  // A matrix of a layer: those have homes.
  bool is_layer_matrix() const { return in_layer() && !is_vector(); }
  bool same_op(const WeightSlot& other) const { return layer == other.layer && op == other.op; }
};

// The list that a slot's layer means.
const LayerSpec& list_of(const ModelSpec& spec, int layer);

// All weights that a network of this spec has: first those outside the layers, tables before
// others, then layer by layer in the order of their use.
std::vector<WeightSlot> weight_slots(const ModelSpec& spec);

// Parameters, ties counted once.
int64_t parameter_count(const ModelSpec& spec);

// How a family's files call a weight; "{}" stands for the layer. A bias is "query.bias".
struct WeightName {
  std::string_view weight;
  std::string_view pattern;
};
// Whether a tensor is called so, in whichever layer.
bool is_name_of(std::string_view pattern, std::string_view tensor);
bool is_name_for(const WeightName& name, const WeightSlot& slot);
// Throws kInternal when the table has no such weight.
std::string weight_name(std::span<const WeightName> names, const WeightSlot& slot);

}  // namespace spillway
