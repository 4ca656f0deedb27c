// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_input.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/family.h"
#include "model/model.h"

namespace spillway {
namespace {

// The rows of a weight for GGUF; rows of q and k are reordered in each head if GGUF has them in
// another order.
ConvertRows rows_of(const BoundWeight& weight, const ModelSpec& spec, const Family& family) {
  const WeightSlot& slot = weight.slot;
  ConvertRows rows{.rows = slot.stored_rows(),
                   .extent = *weight.extent,
                   .groups = weight.groups,
                   .tensor_columns = weight.tensor_columns,
                   .first_column = weight.first_column};
  const bool is_rotated = slot.name == "query" || slot.name == "key";
  const bool halves = !spec.ropes.empty() && spec.ropes.front().style == RopeStyle::kHalves;
  if (family.gguf_pairs_rope && halves && is_rotated) rows.interleaved_rows = spec.head_dim;
  return rows;
}

// Adds a weight as a tensor, or to the last tensor if GGUF has both in one. `names` are those of
// the GGUF file.
void add_weight(const BoundWeight& weight, const ModelSpec& spec, const Family& family,
                std::span<const WeightName> names, std::vector<ConvertTensor>& tensors) {
  const WeightSlot& slot = weight.slot;
  const TensorPlace place = place_of(names, spec, slot);
  SPW_ASSERT(place.groups.rows == 0 && !place.transposed);
  const auto found = std::ranges::find(tensors, place.name, &ConvertTensor::name);
  if (found != tensors.end()) {
    SPW_CHECK(found->dtype == weight.file_dtype(), kUnsupported,
              "tensor '{}' of a GGUF is made of weights of the types {} and {} here; convert the "
              "folder to one type first",
              place.name, dtype_name(found->dtype), dtype_name(weight.file_dtype()));
    found->parts.push_back(rows_of(weight, spec, family));
    return;
  }
  ConvertTensor tensor;
  tensor.name = place.name;
  tensor.dtype = weight.file_dtype();
  tensor.shape = {place.tensor_rows};
  if (!slot.is_vector()) tensor.shape.push_back(slot.cols);
  if (slot.is_vector() || slot.by_position) tensor.fixed_type = DType::kF32;
  tensor.plus_one = weight.less_one && !place.less_one;
  tensor.parts.push_back(rows_of(weight, spec, family));
  tensors.push_back(std::move(tensor));
}

}  // namespace

ConvertInput gguf_input(const ModelFiles& files) {
  if (files.format == ModelFiles::Format::kGguf) return convert_input(files);
  const Family& family = family_of(files);
  const Model model = describe_model(files);
  ConvertInput input{files.name, files.paths, Metadata(files.name), {}};
  input.metadata.add("general.architecture", model.spec.family);
  input.metadata.add("general.name", model.spec.name);
  family.write_gguf_keys(family.read_shape(files), input.metadata);
  ModelFiles made;
  made.metadata = input.metadata;
  for (const BoundWeight& weight : model.weights)
    add_weight(weight, model.spec, family, family.names(made), input.tensors);
  if (!model.spec.ropes.empty() &&
      rope_scaling_kind(model.spec.ropes.front()) == RopeScalingKind::kUneven) {
    ConvertTensor divisors;
    divisors.name = "rope_freqs.weight";
    divisors.values = rope_divisors(model.spec.ropes.front());
    divisors.shape = {std::ssize(divisors.values)};
    divisors.fixed_type = DType::kF32;
    input.tensors.push_back(std::move(divisors));
  }
  return input;
}

std::string gguf_caveat(const ModelFiles& files) { return family_of(files).gguf_caveat; }

}  // namespace spillway
