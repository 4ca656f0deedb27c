// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_input.h"

#include <iterator>
#include <utility>
#include <vector>

#include "model/family.h"
#include "model/model.h"

namespace spillway {
namespace {

bool is_rotated(WeightRole role) {
  using enum WeightRole;
  return role == kQuery || role == kQueryBias || role == kKey || role == kKeyBias;
}

ConvertTensor tensor_of(const BoundWeight& weight, const ModelSpec& spec, std::string name) {
  const WeightSlot& slot = weight.slot;
  ConvertTensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = weight.file_dtype();
  tensor.shape = slot.is_vector() ? std::vector<int64_t>{slot.cols}
                                  : std::vector<int64_t>{slot.rows, slot.cols};
  tensor.extent = *weight.extent;
  if (slot.is_vector() || slot.role == WeightRole::kPositionEmbedding)
    tensor.fixed_type = DType::kF32;
  const bool halves = spec.position == PositionKind::kRope && spec.rope.style == RopeStyle::kHalves;
  if (halves && is_rotated(slot.role)) tensor.interleaved_rows = spec.head_dim;
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
  family.write_gguf_keys(model.spec, input.metadata);
  const auto names = family.names(ModelFiles{});  // of GGUF files
  for (const BoundWeight& weight : model.weights)
    input.tensors.push_back(tensor_of(weight, model.spec, weight_name(names, weight.slot)));
  if (model.spec.position == PositionKind::kRope &&
      rope_scaling_kind(model.spec.rope) == RopeScalingKind::kUneven) {
    ConvertTensor divisors;
    divisors.name = "rope_freqs.weight";
    divisors.values = rope_divisors(model.spec.rope);
    divisors.shape = {std::ssize(divisors.values)};
    divisors.fixed_type = DType::kF32;
    input.tensors.push_back(std::move(divisors));
  }
  return input;
}

std::string gguf_caveat(const ModelFiles& files) { return family_of(files).gguf_caveat; }

}  // namespace spillway
