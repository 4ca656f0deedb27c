// SPDX-License-Identifier: Apache-2.0
#include "runtime/model_weights.h"

#include <utility>

#include "base/error.h"

namespace spillway {

WeightView& weight_of(LayerWeights& layer, WeightRole role) {
  switch (role) {
    case WeightRole::kAttentionNorm:
      return layer.attention_norm.weight;
    case WeightRole::kAttentionNormBias:
      return layer.attention_norm.bias;
    case WeightRole::kQuery:
      return layer.query.weight;
    case WeightRole::kQueryBias:
      return layer.query.bias;
    case WeightRole::kKey:
      return layer.key.weight;
    case WeightRole::kKeyBias:
      return layer.key.bias;
    case WeightRole::kValue:
      return layer.value.weight;
    case WeightRole::kValueBias:
      return layer.value.bias;
    case WeightRole::kAttentionOut:
      return layer.attention_out.weight;
    case WeightRole::kAttentionOutBias:
      return layer.attention_out.bias;
    case WeightRole::kMlpNorm:
      return layer.mlp_norm.weight;
    case WeightRole::kMlpNormBias:
      return layer.mlp_norm.bias;
    case WeightRole::kGate:
      return layer.gate.weight;
    case WeightRole::kGateBias:
      return layer.gate.bias;
    case WeightRole::kUp:
      return layer.up.weight;
    case WeightRole::kUpBias:
      return layer.up.bias;
    case WeightRole::kDown:
      return layer.down.weight;
    case WeightRole::kDownBias:
      return layer.down.bias;
    default:
      fail(ErrorCode::kInternal, "internal error: weight role {} in a layer",
           static_cast<int>(role));
  }
}

const LinearWeights& linear_of(const LayerWeights& layer, WeightRole role) {
  switch (role) {
    case WeightRole::kQuery:
      return layer.query;
    case WeightRole::kKey:
      return layer.key;
    case WeightRole::kValue:
      return layer.value;
    case WeightRole::kAttentionOut:
      return layer.attention_out;
    case WeightRole::kGate:
      return layer.gate;
    case WeightRole::kUp:
      return layer.up;
    case WeightRole::kDown:
      return layer.down;
    default:
      fail(ErrorCode::kInternal, "internal error: weight role {} is no matrix of a layer",
           static_cast<int>(role));
  }
}

WeightView& WeightViews::view(const WeightSlot& slot) {
  switch (slot.role) {
    case WeightRole::kTokenEmbedding:
      return token_embedding;
    case WeightRole::kPositionEmbedding:
      return position_embedding;
    case WeightRole::kProjectIn:
      return project_in;
    case WeightRole::kProjectOut:
      return project_out;
    case WeightRole::kFinalNorm:
      return final_norm.weight;
    case WeightRole::kFinalNormBias:
      return final_norm.bias;
    case WeightRole::kHead:
      return head;
    default:
      if (layers.size() <= static_cast<size_t>(slot.layer))
        layers.resize(static_cast<size_t>(slot.layer) + 1);
      return weight_of(layers[static_cast<size_t>(slot.layer)], slot.role);
  }
}

const StreamedWeight& WeightViews::streamed_of(int layer, WeightRole role) const {
  if (role == WeightRole::kHead && streamed_head) return *streamed_head;
  for (const StreamedWeight& weight : streamed[static_cast<size_t>(layer)]) {
    if (weight.role == role) return weight;
  }
  fail(ErrorCode::kInternal, "internal error: a weight without a home");
}

StreamedWeight& WeightViews::streamed_of(const WeightSlot& slot) {
  return const_cast<StreamedWeight&>(std::as_const(*this).streamed_of(slot.layer, slot.role));
}

DType WeightViews::matrix_type() const {
  if (layers.empty()) return token_embedding.dtype;
  if (!streamed.empty()) {
    for (const StreamedWeight& weight : streamed.front()) {
      if (weight.role == WeightRole::kQuery) return weight.view.dtype;
    }
  }
  return layers.front().query.weight.dtype;
}

void WeightViews::for_layer_matrices(const std::function<void(const WeightView&)>& f) const {
  for (const LayerWeights& layer : layers) {
    for (const LinearWeights* linear : {&layer.query, &layer.key, &layer.value,
                                        &layer.attention_out, &layer.gate, &layer.up, &layer.down})
      if (!linear->weight.empty()) f(linear->weight);
  }
  for (const std::vector<StreamedWeight>& layer : streamed) {
    for (const StreamedWeight& weight : layer) f(weight.view);
  }
}

MatrixFacts WeightViews::matrix_facts() const {
  MatrixFacts facts{.has_f32 = false, .has_16_bit = false};
  const auto add = [&](const WeightView& w) {
    facts.has_f32 = facts.has_f32 || w.dtype == DType::kF32;
    facts.has_16_bit = facts.has_16_bit || w.dtype == DType::kF16 || w.dtype == DType::kBF16;
  };
  for (const WeightView* w : {&head, &project_in, &project_out})
    if (!w->empty()) add(*w);
  if (streamed_head) add(streamed_head->view);
  for_layer_matrices([&](const WeightView& w) {
    add(w);
    facts.layer_bytes += w.bytes();
  });
  if (!layers.empty()) facts.layer_bytes /= static_cast<int64_t>(layers.size());
  return facts;
}

WeightTypes WeightViews::layer_types() const {
  WeightTypes types;
  bool all = true;
  for_layer_matrices([&](const WeightView& w) { all = types.try_add(w.dtype) && all; });
  return all ? types : WeightTypes();
}

ModelWeights::ModelWeights(WeightViews views, WeightMemory memory, std::vector<Tier> homes,
                           Counts counts)
    : WeightViews(std::move(views)),
      memory_(std::move(memory)),
      homes_(std::move(homes)),
      counts_(counts) {}

uint64_t ModelWeights::disk_bytes() const {
  uint64_t bytes = 0;
  for (const auto& file : memory_.spilled) bytes += file->bytes();
  return bytes;
}

bool ModelWeights::try_stay(const Device& device, const Model& model, const WeightPlacement& next) {
  if (empty() || next.homes(device, model) != homes_) return false;
  if (disk_bytes() > next.disk_budget) return false;  // files that hold more than is of use by now
  counts_ = {.made = 0, .kept = static_cast<int>(homes_.size())};
  return true;
}

}  // namespace spillway
