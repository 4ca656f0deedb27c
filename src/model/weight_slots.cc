// SPDX-License-Identifier: Apache-2.0
#include "model/weight_slots.h"

#include <fmt/core.h>

#include "base/error.h"

namespace spillway {

bool is_vector_role(WeightRole role) {
  using enum WeightRole;
  switch (role) {
    case kFinalNorm:
    case kFinalNormBias:
    case kAttentionNorm:
    case kAttentionNormBias:
    case kQueryBias:
    case kKeyBias:
    case kValueBias:
    case kAttentionOutBias:
    case kMlpNorm:
    case kMlpNormBias:
    case kGateBias:
    case kUpBias:
    case kDownBias:
      return true;
    case kTokenEmbedding:
    case kPositionEmbedding:
    case kProjectIn:
    case kProjectOut:
    case kHead:
    case kQuery:
    case kKey:
    case kValue:
    case kAttentionOut:
    case kGate:
    case kUp:
    case kDown:
      return false;
  }
  return false;
}

std::span<const LayerMatrixName> layer_matrix_names() {
  using enum WeightRole;
  static constexpr LayerMatrixName kNames[] = {
      {kQuery, "query"},   {kKey, "key"},   {kValue, "value"},  {kAttentionOut, "attention_out"},
      {kGate, "mlp_gate"}, {kUp, "mlp_up"}, {kDown, "mlp_down"}};
  return kNames;
}

std::vector<WeightSlot> weight_slots(const ModelSpec& spec) {
  using enum WeightRole;
  std::vector<WeightSlot> slots;
  const auto add_norm = [&](WeightRole weight, WeightRole bias, int layer) {
    if (spec.norm_affine) slots.push_back({weight, layer, 1, spec.hidden});
    if (spec.norm_affine && spec.norm_bias) slots.push_back({bias, layer, 1, spec.hidden});
  };
  const auto add_linear = [&](WeightRole weight, WeightRole bias, int layer, int64_t rows,
                              int64_t cols, bool has_bias) {
    slots.push_back({weight, layer, rows, cols});
    if (has_bias) slots.push_back({bias, layer, 1, rows});
  };

  slots.push_back({kTokenEmbedding, -1, spec.vocab_size, spec.embedding_dim});
  if (spec.position == PositionKind::kLearned) {
    slots.push_back({kPositionEmbedding, -1, spec.learned_positions(), spec.hidden});
  }
  if (spec.embedding_dim != spec.hidden) {
    slots.push_back({kProjectIn, -1, spec.hidden, spec.embedding_dim});
    slots.push_back({kProjectOut, -1, spec.embedding_dim, spec.hidden});
  }
  if (spec.final_norm) add_norm(kFinalNorm, kFinalNormBias, -1);
  if (!spec.tied_head) slots.push_back({kHead, -1, spec.vocab_size, spec.embedding_dim});

  for (int layer = 0; layer < spec.layers; ++layer) {
    add_norm(kAttentionNorm, kAttentionNormBias, layer);
    add_linear(kQuery, kQueryBias, layer, spec.q_dim(), spec.hidden, spec.qkv_bias);
    add_linear(kKey, kKeyBias, layer, spec.kv_dim(), spec.hidden, spec.qkv_bias);
    add_linear(kValue, kValueBias, layer, spec.kv_dim(), spec.hidden, spec.qkv_bias);
    add_linear(kAttentionOut, kAttentionOutBias, layer, spec.hidden, spec.q_dim(),
               spec.attention_out_bias);
    if (!spec.parallel_residual) add_norm(kMlpNorm, kMlpNormBias, layer);
    if (spec.gated_mlp) add_linear(kGate, kGateBias, layer, spec.ffn, spec.hidden, spec.mlp_bias);
    add_linear(kUp, kUpBias, layer, spec.ffn, spec.hidden, spec.mlp_bias);
    add_linear(kDown, kDownBias, layer, spec.hidden, spec.ffn, spec.mlp_bias);
  }
  return slots;
}

int64_t parameter_count(const ModelSpec& spec) {
  int64_t count = 0;
  for (const WeightSlot& slot : weight_slots(spec)) count += slot.rows * slot.cols;
  return count;
}

bool is_name_of(std::string_view pattern, std::string_view tensor) {
  const size_t hole = pattern.find("{}");
  if (hole == std::string_view::npos) return pattern == tensor;
  const std::string_view before = pattern.substr(0, hole);
  const std::string_view after = pattern.substr(hole + 2);
  if (tensor.size() <= before.size() + after.size() || !tensor.starts_with(before) ||
      !tensor.ends_with(after))
    return false;
  const size_t digits = tensor.size() - before.size() - after.size();
  return tensor.substr(hole, digits).find_first_not_of("0123456789") == std::string_view::npos;
}

std::string weight_name(std::span<const WeightName> names, const WeightSlot& slot) {
  for (const WeightName& name : names) {
    if (name.role == slot.role) return fmt::format(fmt::runtime(name.pattern), slot.layer);
  }
  fail(ErrorCode::kInternal, "internal error: no name for weight role {}",
       static_cast<int>(slot.role));
}

}  // namespace spillway
