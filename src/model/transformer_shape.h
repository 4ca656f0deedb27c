// SPDX-License-Identifier: Apache-2.0
// The sizes and choices of a decoder-only transformer, as a family's files give them, and the lists
// of ops that follow from them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/model_spec.h"
#include "model/rope_spec.h"
#include "tensor/op_kinds.h"

namespace spillway {

enum class PositionKind : uint8_t {
  kRope,     // q and k are rotated
  kLearned,  // a table is added to the token embedding
  kAlibi,    // a bias on the scores (shapes for planning only)
};

// How attention and MLP are wired to the residual stream x.
enum class ResidualWiring : uint8_t {
  kPreNorm,           // x += attention(norm(x)), then x += mlp(norm(x))
  kPostNorm,          // x = norm(x + attention(x)), then x = norm(x + mlp(x))
  kParallel,          // x += attention(n) + mlp(n) of one n = norm(x)
  kParallelTwoNorms,  // x += attention(norm(x)) + mlp(norm(x)), each with a norm of its own
  kBranchNorm,        // x += norm(attention(x)), then x += norm(mlp(x))
  kSandwich,          // x += norm(attention(norm(x))), then x += norm(mlp(norm(x)))
};

struct TransformerShape {
  std::string family;
  std::string name;

  int64_t vocab_size = 0;
  int64_t hidden = 0;
  int64_t embedding_dim = 0;
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int64_t ffn = 0;
  int64_t max_context = 0;
  int sliding_window = 0;       // 0 = none
  bool chunked_window = false;  // tokens since the last multiple of the window are seen instead
  // If there is a window, layers n, 2n, 3n, ... (from 1) attend to all tokens, n being this number;
  // 0: none does.
  int full_attention_every = 0;
  // Layers n, 2n, 3n, ... (from 1) do not rotate q and k, n being this number; 0: all do.
  int no_rope_every = 0;
  // This many of the last layers have no keys and values: each reads those of the last layer before
  // them that attends in the same way.
  int shared_kv_layers = 0;

  ResidualWiring wiring = ResidualWiring::kPreNorm;
  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-5F;
  bool norm_affine = true;  // norms have weights
  bool norm_bias = false;
  bool final_norm = true;
  bool head_norms = false;    // q and k are normalized per head before they are rotated
  bool row_norms = false;     // all of q, and all of k, is normalized as one row instead
  float embedding_scale = 1;  // of a token's row of the table
  // Factors of q . k (0: 1 / sqrt(head_dim)), and of the logits, which the final norm's weights
  // take on when they are loaded.
  float attention_scale = 0;
  float logit_scale = 1;

  PositionKind position = PositionKind::kRope;
  int position_offset = 0;  // added to a position to index the learned table
  RopeSpec rope;
  // The rope of layers that have a window, if it is another one; 0 dims: it is not.
  RopeSpec local_rope;

  ActivationKind activation = ActivationKind::kSilu;
  bool gated_mlp = true;
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool head_bias = false;  // of the matrix that makes logits
  bool tied_head = false;
  bool executable = true;  // as in ModelSpec

  // Whether all layers attend to all tokens. A window as long as the context hides nothing, and
  // layers that have one keep the same state as those without.
  bool has_no_window() const { return sliding_window == 0 || sliding_window >= max_context; }
  int64_t q_dim() const { return int64_t{heads} * head_dim; }
  int64_t kv_dim() const { return int64_t{kv_heads} * head_dim; }
};

// Throws kInvalidArgument naming the first invalid field (zero, negative, too large, not
// divisible). Afterwards no product of two fields overflows.
void validate(const TransformerShape& shape, const std::string& where);

// The names of a layer's matrices, in the order of a layer, and of the linear ops that have them,
// including the head's. Plans use these names.
std::span<const std::string_view> layer_matrix_names();
std::span<const std::string_view> linear_op_names();

// Makes the network of a valid shape.
ModelSpec make_spec(const TransformerShape& shape);

}  // namespace spillway
