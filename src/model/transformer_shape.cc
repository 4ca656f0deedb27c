// SPDX-License-Identifier: Apache-2.0
#include "model/transformer_shape.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/kv_format.h"

namespace spillway {
namespace {

void check_range(const std::string& where, const char* field, int64_t value, int64_t low,
                 int64_t high) {
  SPW_CHECK(
      value >= low && value <= high, kInvalidArgument,
      "{}: {} is {}, which is not within {} to {}; the file is damaged or not of a known kind",
      where, field, value, low, high);
}

void check_rope(const std::string& where, const RopeSpec& rope, int head_dim) {
  check_range(where, "rotary size", rope.dims, 2, head_dim);
  SPW_CHECK(rope.dims % 2 == 0, kInvalidArgument, "{}: rotary size {} is odd", where, rope.dims);
  SPW_CHECK(std::isfinite(rope.theta) && rope.theta > 0, kInvalidArgument,
            "{}: rope base frequency {} makes no sense", where, rope.theta);
}

// Builds a list of ops, one after the other.
class ListBuilder {
 public:
  // `state_back`: as in AttentionSpec. `rope`: as in OpSpec.
  explicit ListBuilder(const TransformerShape& shape, int state_back = 0, int rope = -1)
      : shape_(shape), state_back_(state_back), rope_(rope) {}

  Place place(std::string_view scratch, bool f32 = false) { return list_.place(scratch, f32); }
  LayerSpec take() { return std::move(list_); }

  void embedding(std::string_view name, int64_t rows, int64_t cols, EmbeddingSpec how, Place to) {
    add({.kind = OpKind::kEmbedding,
         .name = name,
         .input = to,
         .output = to,
         .matrices = {{.name = name, .rows = rows, .cols = cols}},
         .embedding = how});
  }
  // The norm's weights are multiplied by `scale` when they are loaded.
  void norm(std::string_view name, Place from, Place to, float scale = 1) {
    OpSpec op{.kind = OpKind::kNorm,
              .name = name,
              .input = from,
              .output = to,
              .norm = {.kind = shape_.norm, .eps = shape_.norm_eps}};
    if (shape_.norm_affine)
      op.matrices = {{.name = name,
                      .rows = 1,
                      .cols = shape_.hidden,
                      .bias = shape_.norm_bias,
                      .scale = scale}};
    add(std::move(op));
  }
  // Normalizes a range of columns in place, each head of them or all as one row.
  void head_norm(std::string_view name, Place at, int64_t first, int64_t columns) {
    const int64_t width = shape_.row_norms ? columns : shape_.head_dim;
    add({.kind = OpKind::kNorm,
         .name = name,
         .input = at,
         .output = at,
         .matrices = {{.name = name, .rows = 1, .cols = width}},
         .norm = {.kind = shape_.norm,
                  .eps = shape_.norm_eps,
                  .first_column = first,
                  .columns = columns}});
  }
  void linear(std::string_view name, std::vector<MatrixSpec> matrices, Place from, Place to) {
    add({.kind = OpKind::kLinear,
         .name = name,
         .input = from,
         .output = to,
         .matrices = std::move(matrices)});
  }
  void gather(Place to) { add({.kind = OpKind::kGather, .name = "gather", .output = to}); }

  // Adds q, k and v of `from`, and attention; returns the place of the result.
  Place attention(Place from) {
    const int64_t q = shape_.q_dim(), kv = shape_.kv_dim();
    const bool bias = shape_.qkv_bias;
    const Place qkv = place("qkv"), attended = place("attended");
    std::vector<MatrixSpec> matrices = {
        {.name = "query", .rows = q, .cols = shape_.hidden, .bias = bias}};
    if (state_back_ == 0) {
      for (const std::string_view name : {"key", "value"})
        matrices.push_back({.name = name, .rows = kv, .cols = shape_.hidden, .bias = bias});
    }
    linear("qkv", std::move(matrices), from, qkv);
    if (shape_.head_norms || shape_.row_norms) {
      head_norm("query_norm", qkv, 0, q);
      if (state_back_ == 0) head_norm("key_norm", qkv, q, kv);
    }
    if (rope_ >= 0)
      add({.kind = OpKind::kRope, .name = "rope", .input = qkv, .output = qkv, .rope = rope_});
    add({.kind = OpKind::kAttention,
         .name = "attention",
         .input = qkv,
         .output = attended,
         .attention = {.heads = shape_.heads,
                       .kv_heads = shape_.kv_heads,
                       .head_dim = shape_.head_dim,
                       .scale = shape_.attention_scale > 0
                                    ? shape_.attention_scale
                                    : 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)),
                       .window = shape_.sliding_window,
                       .chunked = shape_.chunked_window && shape_.sliding_window > 0,
                       .state_back = state_back_,
                       .alibi = shape_.position == PositionKind::kAlibi}});
    return attended;
  }
  void attention_out(Place attended) {
    add_branch({"attention_out", "attention_post_norm", "attention_sum"}, shape_.q_dim(),
               shape_.attention_out_bias, attended);
  }

  // Adds the MLP up to its activation; returns the place of the result.
  Place mlp_up(Place from) {
    const Place mlp = place("mlp");
    std::vector<MatrixSpec> matrices;
    const auto matrix = [&](std::string_view name) {
      matrices.push_back(
          {.name = name, .rows = shape_.ffn, .cols = shape_.hidden, .bias = shape_.mlp_bias});
    };
    if (shape_.gated_mlp) matrix("mlp_gate");
    matrix("mlp_up");
    linear("mlp_up", std::move(matrices), from, mlp);
    add({.kind = OpKind::kActivation,
         .name = "activation",
         .input = mlp,
         .output = mlp,
         .activation = {.kind = shape_.activation, .gated = shape_.gated_mlp}});
    return mlp;
  }
  void mlp_down(Place mlp) {
    add_branch({"mlp_down", "mlp_post_norm", "mlp_sum"}, shape_.ffn, shape_.mlp_bias, mlp);
  }

 private:
  void add(OpSpec op) { list_.ops.push_back(std::move(op)); }
  struct BranchNames {
    std::string_view matrix, norm, sum;
  };
  // Adds the last matrix of attention or MLP, and adds its result to the residual stream, after
  // normalizing it if the wiring says so.
  void add_branch(const BranchNames& names, int64_t cols, bool bias, Place from) {
    const bool is_normed =
        shape_.wiring == ResidualWiring::kBranchNorm || shape_.wiring == ResidualWiring::kSandwich;
    // A norm reads more of its input than 16-bit activations hold.
    Place branch = place("branch", /*f32=*/is_normed);
    linear(names.matrix,
           {{.name = names.matrix, .rows = shape_.hidden, .cols = cols, .bias = bias}}, from,
           branch);
    if (is_normed) {
      const Place normed = place("normed_branch", /*f32=*/true);
      norm(names.norm, branch, normed);
      branch = normed;
    }
    add({.kind = OpKind::kAdd, .name = names.sum, .input = branch, .output = kResidual});
  }

  const TransformerShape& shape_;
  const int state_back_;
  const int rope_;
  LayerSpec list_;
};

LayerSpec make_layer(const TransformerShape& shape, int state_back, int rope) {
  ListBuilder b(shape, state_back, rope);
  switch (shape.wiring) {
    case ResidualWiring::kPreNorm:
    case ResidualWiring::kSandwich: {
      const Place normed = b.place("normed");
      b.norm("attention_norm", kResidual, normed);
      b.attention_out(b.attention(normed));
      b.norm("mlp_norm", kResidual, normed);
      b.mlp_down(b.mlp_up(normed));
      break;
    }
    case ResidualWiring::kPostNorm:
      b.attention_out(b.attention(kResidual));
      b.norm("attention_norm", kResidual, kResidual);
      b.mlp_down(b.mlp_up(kResidual));
      b.norm("mlp_norm", kResidual, kResidual);
      break;
    case ResidualWiring::kBranchNorm:
      b.attention_out(b.attention(kResidual));
      b.mlp_down(b.mlp_up(kResidual));
      break;
    case ResidualWiring::kParallel:
    case ResidualWiring::kParallelTwoNorms: {
      // Both branches must read x before either is added to it.
      const Place normed = b.place("normed");
      b.norm("attention_norm", kResidual, normed);
      const Place attended = b.attention(normed);
      if (shape.wiring == ResidualWiring::kParallelTwoNorms) b.norm("mlp_norm", kResidual, normed);
      const Place mlp = b.mlp_up(normed);
      b.attention_out(attended);
      b.mlp_down(mlp);
      break;
    }
  }
  return b.take();
}

// Adds the layers to the spec; equal layers share a list.
void add_layers(const TransformerShape& shape, ModelSpec& spec) {
  TransformerShape full = shape;
  full.sliding_window = 0;
  const int every = shape.full_attention_every;
  const auto sees_all = [&](int layer) {
    return shape.has_no_window() || (every > 0 && (layer + 1) % every == 0);
  };
  const int plain = shape.no_rope_every;
  // Layers with a window keep their rope even where the window hides nothing.
  const auto rope_of = [&](int layer) {
    if (shape.position != PositionKind::kRope) return -1;
    if (plain > 0 && (layer + 1) % plain == 0) return -1;
    const bool is_local = shape.sliding_window > 0 && (every == 0 || (layer + 1) % every != 0);
    return shape.local_rope.dims > 0 && is_local ? 1 : 0;
  };
  std::map<std::tuple<bool, int, int>, std::shared_ptr<const LayerSpec>> made;
  const int owners = shape.layers - shape.shared_kv_layers;
  for (int layer = 0; layer < shape.layers; ++layer) {
    const bool all = sees_all(layer);
    int owner = std::min(layer, owners - 1);
    while (owner < layer && owner >= 0 && sees_all(owner) != all) --owner;
    const int rope = rope_of(layer);
    auto& list = made[{all, layer - owner, rope}];
    if (list == nullptr)
      list = std::make_shared<const LayerSpec>(make_layer(all ? full : shape, layer - owner, rope));
    spec.layers.push_back(list);
  }
}

LayerSpec make_embedding(const TransformerShape& shape) {
  ListBuilder b(shape);
  const bool narrow = shape.embedding_dim != shape.hidden;
  const Place first = narrow ? b.place("narrow") : kResidual;
  b.embedding("token_embedding", shape.vocab_size, shape.embedding_dim,
              {.scale = shape.embedding_scale}, first);
  if (narrow)
    b.linear("project_in",
             {{.name = "project_in", .rows = shape.hidden, .cols = shape.embedding_dim}}, first,
             kResidual);
  if (shape.position == PositionKind::kLearned)
    b.embedding("position_embedding", shape.max_context + shape.position_offset, shape.hidden,
                {.by_position = true, .offset = shape.position_offset}, kResidual);
  return b.take();
}

LayerSpec make_head(const TransformerShape& shape) {
  ListBuilder b(shape);
  const Place input = b.place("head_input");
  if (shape.final_norm) {
    const Place rows = b.place("head_rows", /*f32=*/true);
    b.gather(rows);
    b.norm("final_norm", rows, input, shape.logit_scale);
  } else {
    b.gather(input);
  }
  Place from = input;
  if (shape.embedding_dim != shape.hidden) {
    from = b.place("narrow");
    b.linear("project_out",
             {{.name = "project_out", .rows = shape.embedding_dim, .cols = shape.hidden}}, input,
             from);
  }
  b.linear("head",
           {{.name = "head",
             .rows = shape.vocab_size,
             .cols = shape.embedding_dim,
             .bias = shape.head_bias,
             .same_as = shape.tied_head ? "token_embedding" : std::string_view()}},
           from, b.place("logits", /*f32=*/true));
  return b.take();
}

}  // namespace

void validate(const TransformerShape& shape, const std::string& where) {
  // The bounds are generous (far above any published model) and small enough that products fit in
  // 63 bits.
  check_range(where, "vocabulary size", shape.vocab_size, 1, 1 << 24);
  check_range(where, "hidden size", shape.hidden, 1, 1 << 20);
  check_range(where, "embedding size", shape.embedding_dim, 1, 1 << 20);
  check_range(where, "layer count", shape.layers, 1, 4096);
  check_range(where, "head count", shape.heads, 1, 1 << 14);
  check_range(where, "KV head count", shape.kv_heads, 1, shape.heads);
  check_range(where, "head size", shape.head_dim, 1, 1 << 12);
  check_range(where, "feed-forward size", shape.ffn, 1, 1 << 22);
  check_range(where, "context length", shape.max_context, 1, int64_t{1} << 30);
  check_range(where, "sliding window", shape.sliding_window, 0, int64_t{1} << 30);
  SPW_CHECK(
      !shape.chunked_window || shape.has_no_window() || shape.sliding_window % kKvBlockTokens == 0,
      kUnsupported,
      "{}: sliding window is {}; layers that attend to chunks take a multiple of {} tokens", where,
      shape.sliding_window, kKvBlockTokens);
  check_range(where, "layers from one that attends to all tokens to the next",
              shape.full_attention_every, 0, shape.layers);
  SPW_CHECK(!shape.head_bias || !shape.tied_head, kUnsupported,
            "{}: a head that shares the embedding's weights and has a bias is not supported",
            where);
  check_range(where, "layers from one that rotates nothing to the next", shape.no_rope_every, 0,
              shape.layers);
  const auto check_factor = [&](const char* what, float factor, bool may_be_zero) {
    SPW_CHECK(std::isfinite(factor) && (factor > 0 || (may_be_zero && factor == 0)),
              kInvalidArgument, "{}: {} is {}, which makes no sense", where, what, factor);
  };
  check_factor("the factor of attention scores", shape.attention_scale, true);
  check_factor("the factor of logits", shape.logit_scale, false);
  SPW_CHECK(shape.logit_scale == 1 || (shape.final_norm && shape.norm_affine), kUnsupported,
            "{}: a factor of logits needs a final norm with weights", where);
  check_factor("the factor of embeddings", shape.embedding_scale, false);
  check_range(where, "count of layers without keys and values", shape.shared_kv_layers, 0,
              shape.layers - 1);
  if (shape.shared_kv_layers > 0 && !shape.has_no_window() && shape.full_attention_every > 0)
    check_range(where, "count of layers with keys and values",
                shape.layers - shape.shared_kv_layers, std::max(2, shape.full_attention_every),
                shape.layers);
  SPW_CHECK(shape.heads % shape.kv_heads == 0, kInvalidArgument,
            "{}: {} heads are not a multiple of {} KV heads", where, shape.heads, shape.kv_heads);
  SPW_CHECK(std::isfinite(shape.norm_eps) && shape.norm_eps >= 0 && shape.norm_eps < 1,
            kInvalidArgument, "{}: norm epsilon {} makes no sense", where, shape.norm_eps);
  if (shape.position == PositionKind::kRope) {
    check_rope(where, shape.rope, shape.head_dim);
    if (shape.local_rope.dims > 0) check_rope(where, shape.local_rope, shape.head_dim);
  }
}

std::span<const std::string_view> layer_matrix_names() {
  static constexpr std::string_view kNames[] = {"query",    "key",    "value",   "attention_out",
                                                "mlp_gate", "mlp_up", "mlp_down"};
  return kNames;
}

std::span<const std::string_view> linear_op_names() {
  static constexpr std::string_view kNames[] = {"qkv", "attention_out", "mlp_up", "mlp_down",
                                                "head"};
  return kNames;
}

ModelSpec make_spec(const TransformerShape& shape) {
  ModelSpec spec;
  spec.family = shape.family;
  spec.name = shape.name;
  spec.vocab_size = shape.vocab_size;
  spec.hidden = shape.hidden;
  spec.embedding_dim = shape.embedding_dim;
  spec.heads = shape.heads;
  spec.kv_heads = shape.kv_heads;
  spec.head_dim = shape.head_dim;
  spec.ffn = shape.ffn;
  spec.max_context = shape.max_context;
  spec.executable = shape.executable;
  if (shape.position == PositionKind::kRope) {
    spec.ropes = {shape.rope};
    if (shape.local_rope.dims > 0) spec.ropes.push_back(shape.local_rope);
  }
  spec.embedding = std::make_shared<const LayerSpec>(make_embedding(shape));
  add_layers(shape, spec);
  spec.head = std::make_shared<const LayerSpec>(make_head(shape));
  finish_lists(spec);
  return spec;
}

}  // namespace spillway
