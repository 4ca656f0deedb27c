// SPDX-License-Identifier: Apache-2.0
// Every weight of a network by its role, with the shape that the spec gives it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_spec.h"

namespace spillway {

enum class WeightRole : uint8_t {
  kTokenEmbedding,     // [vocab, embedding_dim]
  kPositionEmbedding,  // [max_context + offset, hidden]
  kProjectIn,          // [hidden, embedding_dim]
  kProjectOut,         // [embedding_dim, hidden]
  kFinalNorm,          // [1, hidden], as all norms and their biases
  kFinalNormBias,
  kHead,  // [vocab, embedding_dim]; absent when tied
  // per layer
  kAttentionNorm,
  kAttentionNormBias,
  kQuery,      // [q_dim, hidden]
  kQueryBias,  // [1, q_dim]
  kKey,        // [kv_dim, hidden]
  kKeyBias,
  kValue,  // [kv_dim, hidden]
  kValueBias,
  kAttentionOut,  // [hidden, q_dim]
  kAttentionOutBias,
  kMlpNorm,
  kMlpNormBias,
  kGate,  // [ffn, hidden], gated MLPs only
  kGateBias,
  kUp,  // [ffn, hidden]
  kUpBias,
  kDown,  // [hidden, ffn]
  kDownBias,
};

// Norms and biases.
bool is_vector_role(WeightRole role);

// What people call the matrices of a layer, in files of theirs; in the order of a layer.
struct LayerMatrixName {
  WeightRole role;
  std::string_view name;
};
std::span<const LayerMatrixName> layer_matrix_names();

struct WeightSlot {
  WeightRole role;
  int layer;  // -1 for the weights outside the layers
  int64_t rows;
  int64_t cols;

  // Vectors (norms, biases) are kept in a plain type; matrices may be quantized.
  bool is_vector() const { return is_vector_role(role); }
};

// All weights that a network of this spec has: first those outside the layers, then layer by layer.
std::vector<WeightSlot> weight_slots(const ModelSpec& spec);

// Parameters, ties counted once.
int64_t parameter_count(const ModelSpec& spec);

// How a family's files call a role; "{}" stands for the layer.
struct WeightName {
  WeightRole role;
  std::string_view pattern;
};
// Whether a tensor is called so, in whichever layer.
bool is_name_of(std::string_view pattern, std::string_view tensor);
// Throws kInternal when the table has no such role.
std::string weight_name(std::span<const WeightName> names, const WeightSlot& slot);

}  // namespace spillway
