// SPDX-License-Identifier: Apache-2.0
#include "model/weight_slots.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace spillway {
namespace {

constexpr std::string_view kBiasSuffix = ".bias";

void add_slots(const ModelSpec& spec, int layer, std::vector<WeightSlot>& slots,
               const std::function<bool(const OpSpec&)>& wanted) {
  const LayerSpec& list = list_of(spec, layer);
  for (size_t op = 0; op < list.ops.size(); ++op) {
    const OpSpec& of = list.ops[op];
    if (!wanted(of)) continue;
    for (size_t i = 0; i < of.matrices.size(); ++i) {
      const MatrixSpec& matrix = of.matrices[i];
      if (!matrix.same_as.empty()) continue;
      WeightSlot slot{.layer = layer,
                      .op = static_cast<int>(op),
                      .matrix = static_cast<int>(i),
                      .kind = of.kind,
                      .name = matrix.name,
                      .op_name = of.name,
                      .by_position = of.embedding.by_position,
                      .rows = matrix.rows,
                      .cols = matrix.cols,
                      .scale = matrix.scale};
      slots.push_back(slot);
      if (!matrix.bias) continue;
      slot.is_bias = true;
      // A norm's bias is as long as its weight; a matrix's has an element for each row.
      if (of.kind == OpKind::kLinear) slot.cols = matrix.rows;
      slot.rows = 1;
      slots.push_back(slot);
    }
  }
}

// The rows that a weight of a list has in a tensor; 0 if the list has no such weight.
int64_t rows_of(const LayerSpec& list, std::string_view weight, bool is_bias) {
  if (is_bias) weight.remove_suffix(kBiasSuffix.size());
  for (const OpSpec& op : list.ops) {
    for (const MatrixSpec& matrix : op.matrices) {
      if (matrix.name == weight) return op.kind == OpKind::kNorm ? matrix.cols : matrix.rows;
    }
  }
  return 0;
}

int kv_heads_of(const LayerSpec& list) {
  for (const OpSpec& op : list.ops) {
    if (op.kind == OpKind::kAttention) return op.attention.kv_heads;
  }
  return 0;
}

}  // namespace

const LayerSpec& list_of(const ModelSpec& spec, int layer) {
  if (layer == kEmbeddingList) return *spec.embedding;
  if (layer == kHeadList) return *spec.head;
  return spec.layer(layer);
}

std::vector<WeightSlot> weight_slots(const ModelSpec& spec) {
  std::vector<WeightSlot> slots;
  const auto is_table = [](const OpSpec& op) { return op.kind == OpKind::kEmbedding; };
  add_slots(spec, kEmbeddingList, slots, is_table);
  add_slots(spec, kEmbeddingList, slots, std::not_fn(is_table));
  const auto all = [](const OpSpec&) { return true; };
  add_slots(spec, kHeadList, slots, all);
  for (int layer = 0; layer < spec.layer_count(); ++layer) add_slots(spec, layer, slots, all);
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

bool is_name_for(const WeightName& name, const WeightSlot& slot) {
  if (!slot.is_bias) return name.weight == slot.name;
  return name.weight.size() == slot.name.size() + kBiasSuffix.size() &&
         name.weight.starts_with(slot.name) && name.weight.ends_with(kBiasSuffix);
}

TensorPlace place_of(std::span<const WeightName> names, const ModelSpec& spec,
                     const WeightSlot& slot) {
  const auto of =
      std::ranges::find_if(names, [&](const WeightName& name) { return is_name_for(name, slot); });
  SPW_CHECK(of != names.end(), kInternal, "internal error: no name for weight '{}{}'", slot.name,
            slot.is_bias ? kBiasSuffix : "");
  TensorPlace place{.name = fmt::format(fmt::runtime(of->pattern), slot.layer),
                    .tensor_rows = slot.stored_rows(),
                    .transposed = of->transposed && !slot.is_vector(),
                    .less_one = of->less_one};
  if (of->rows == TensorRows::kOwn) return place;
  // Counts the rows of the weights before this one in the tensor, and of all of them.
  place.tensor_rows = 0;
  for (const WeightName& name : names) {
    if (name.pattern != of->pattern) continue;
    if (&name == &*of) place.first = place.tensor_rows;
    place.tensor_rows += rows_of(list_of(spec, slot.layer), name.weight, slot.is_bias);
  }
  const bool per_head = of->rows == TensorRows::kPerHead;
  const int heads = per_head ? kv_heads_of(list_of(spec, slot.layer)) : 1;
  if (heads == 1) return place;
  SPW_CHECK(heads > 0 && !place.transposed && place.first % heads == 0 &&
                place.tensor_rows % heads == 0 && slot.stored_rows() % heads == 0,
            kInternal, "internal error: tensor '{}' is not divisible by {} heads", place.name,
            heads);
  place.first /= heads;
  place.groups = {.rows = slot.stored_rows() / heads, .stride = place.tensor_rows / heads};
  return place;
}

}  // namespace spillway
