// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/printable.h"
#include "model/family.h"
#include "model/known_models.h"
#include "model/metadata_fields.h"

namespace spillway {
namespace {

constexpr std::array<const Family*, 2> kFamilies{&kLlamaFamily, &kOptFamily};

// Checkpoints of the bare network lack the leading "model." that those of the language model have.
const TensorInfo* find_tensor(const ModelFiles& files, const std::string& name) {
  if (const TensorInfo* tensor = files.find(name)) return tensor;
  constexpr std::string_view kPrefix = "model.";
  return name.starts_with(kPrefix) ? files.find(name.substr(kPrefix.size())) : nullptr;
}

BoundWeight bind(const ModelFiles& files, const std::string& name, const WeightSlot& slot) {
  const TensorInfo* tensor = find_tensor(files, name);
  if (tensor == nullptr) tensor = &files.get(name);  // throws, saying why
  const std::vector<int64_t> expected = slot.is_vector()
                                            ? std::vector<int64_t>{slot.cols}
                                            : std::vector<int64_t>{slot.rows, slot.cols};
  std::vector<int64_t> found = tensor->shape;
  while (found.size() > expected.size() && found.front() == 1) found.erase(found.begin());
  SPW_CHECK(found == expected, kInvalidArgument, "{}: tensor '{}' has shape {}, {} expected",
            files.name, name, format_shape(tensor->shape), format_shape(expected));
  SPW_CHECK(!slot.is_vector() || !is_quantized(tensor->dtype), kUnsupported,
            "{}: tensor '{}' is a vector of type {}; F32, F16 or BF16 expected", files.name, name,
            dtype_name(tensor->dtype));
  return {slot, tensor->dtype, tensor->extent};
}

}  // namespace

const Family& family_of(const ModelFiles& files) {
  for (const Family* family : kFamilies) {
    if (family->matches(files)) return *family;
  }
  const char* key =
      files.format == ModelFiles::Format::kGguf ? "general.architecture" : "model_type";
  fail(ErrorCode::kUnsupported,
       "{}: {} is '{}', which is not supported; llama, mistral and opt are", files.name, key,
       printable(read_string_or(files.metadata, key, "missing")));
}

int64_t Model::weight_bytes() const {
  int64_t total = 0;
  for (const BoundWeight& weight : weights) total += weight.bytes();
  return total;
}

DType Model::main_dtype() const {
  std::array<int64_t, kDTypeCount> bytes{};
  for (const BoundWeight& weight : weights)
    bytes[static_cast<size_t>(weight.dtype)] += weight.bytes();
  return static_cast<DType>(std::max_element(bytes.begin(), bytes.end()) - bytes.begin());
}

bool Model::is_multiplied(const WeightSlot& slot) const {
  if (slot.is_vector() || slot.role == WeightRole::kPositionEmbedding) return false;
  if (slot.role != WeightRole::kTokenEmbedding) return true;
  // Tied: the table is the head too.
  return std::none_of(weights.begin(), weights.end(), [](const BoundWeight& weight) {
    return weight.slot.role == WeightRole::kHead;
  });
}

Compression compress_matrices(Model& model) {
  Compression done;
  for (BoundWeight& weight : model.weights) {
    if (!model.is_multiplied(weight.slot)) continue;
    const bool whole = weight.slot.cols % dtype_info(DType::kG4).block_elements == 0;
    if (is_quantized(weight.dtype) || !whole) {
      ++done.kept;
      continue;
    }
    weight.loaded_from = weight.file_dtype();
    weight.dtype = DType::kG4;
    ++done.compressed;
  }
  return done;
}

void widen_vectors(Model& model) {
  for (BoundWeight& weight : model.weights) {
    if (!weight.slot.is_vector() || weight.dtype == DType::kF32) continue;
    weight.loaded_from = weight.file_dtype();
    weight.dtype = DType::kF32;
  }
}

Model describe_model(const ModelFiles& files) {
  const Family& family = family_of(files);
  Model model;
  model.spec = family.read_spec(files);
  const auto names = family.names(files);
  // A head that the config calls untied but the files leave out is tied all the same.
  if (!model.spec.tied_head) {
    const std::string head = weight_name(names, {WeightRole::kHead, -1, 0, 0});
    if (files.find(head) == nullptr) model.spec.tied_head = true;
  }
  for (const WeightSlot& slot : weight_slots(model.spec)) {
    model.weights.push_back(bind(files, weight_name(names, slot), slot));
  }
  return model;
}

Model describe_dummy_model(std::string_view name) {
  DType dtype = DType::kF16;
  if (const auto colon = name.find(':'); colon != std::string_view::npos) {
    const auto named = try_dtype_from_name(name.substr(colon + 1));
    SPW_CHECK(named.has_value(), kInvalidArgument, "dummy:{}: unknown weight type '{}'", name,
              name.substr(colon + 1));
    dtype = *named;
    name = name.substr(0, colon);
  }
  const auto spec = try_known_model(name);
  SPW_CHECK(spec.has_value(), kInvalidArgument, "no known model '{}'; known are: {}", name,
            fmt::join(known_model_names(), " "));
  Model model{*spec, {}};
  for (const WeightSlot& slot : weight_slots(model.spec)) {
    const bool whole_blocks = slot.cols % dtype_info(dtype).block_elements == 0;
    const DType matrix = whole_blocks ? dtype : DType::kF16;
    model.weights.push_back({slot, slot.is_vector() ? DType::kF32 : matrix, std::nullopt});
  }
  return model;
}

}  // namespace spillway
