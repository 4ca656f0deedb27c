// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_input.h"

#include <iterator>
#include <utility>
#include <vector>

#include "model/family.h"
#include "model/model.h"

namespace spillway {
namespace {

ConvertTensor tensor_of(const BoundWeight& weight, const ModelSpec& spec, const Family& family) {
  const WeightSlot& slot = weight.slot;
  ConvertTensor tensor;
  tensor.name = weight_name(family.names(ModelFiles{}), slot);  // of GGUF files
  tensor.dtype = weight.file_dtype();
  tensor.shape = slot.is_vector() ? std::vector<int64_t>{slot.cols}
                                  : std::vector<int64_t>{slot.rows, slot.cols};
  tensor.extent = *weight.extent;
  if (slot.is_vector() || slot.by_position) tensor.fixed_type = DType::kF32;
  const bool is_rotated = slot.name == "query" || slot.name == "key";
  const bool halves = !spec.ropes.empty() && spec.ropes.front().style == RopeStyle::kHalves;
  if (family.gguf_pairs_rope && halves && is_rotated) tensor.interleaved_rows = spec.head_dim;
  return tensor;
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
  for (const BoundWeight& weight : model.weights)
    input.tensors.push_back(tensor_of(weight, model.spec, family));
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
