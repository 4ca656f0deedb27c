// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "base/error.h"
#include "base/log.h"
#include "base/nearest_name.h"
#include "base/printable.h"
#include "model/family.h"
#include "model/foreign_quantization.h"
#include "model/known_models.h"
#include "model/metadata_fields.h"
#include "model/transformer_shape.h"

namespace spillway {
namespace {

// Checkpoints of the bare network lack the prefix that those of the language model have. Returns
// nullptr if the tensor has neither name; throws if it cannot be used.
constexpr std::string_view kNetworkPrefixes[] = {"model.", "transformer."};
const TensorInfo* try_tensor(const ModelFiles& files, const std::string& name) {
  if (const TensorInfo* tensor = files.try_get(name)) return tensor;
  for (const std::string_view prefix : kNetworkPrefixes) {
    if (name.starts_with(prefix)) return files.try_get(name.substr(prefix.size()));
  }
  return nullptr;
}

[[noreturn]] void fail_missing(const ModelFiles& files, const std::string& name,
                               const WeightSlot& slot) {
  if (slot.name == "head") {
    fail(ErrorCode::kInvalidArgument,
         "{}: tensor '{}' is missing, and config.json does not tie it to the embedding "
         "(tie_word_embeddings); download the files again",
         files.name, name);
  }
  fail(ErrorCode::kInvalidArgument, "{}: tensor '{}' is missing", files.name, name);
}

BoundWeight bind(const ModelFiles& files, const TensorPlace& place, const WeightSlot& slot) {
  const std::string& name = place.name;
  const TensorInfo* tensor = try_tensor(files, name);
  if (tensor == nullptr) fail_missing(files, name, slot);
  std::vector<int64_t> expected{place.tensor_rows};
  if (!slot.is_vector())
    expected.insert(place.transposed ? expected.begin() : expected.end(), slot.cols);
  std::vector<int64_t> found = tensor->shape;
  while (found.size() > expected.size() && found.front() == 1) found.erase(found.begin());
  SPW_CHECK(found == expected, kInvalidArgument, "{}: tensor '{}' has shape {}, {} expected",
            files.name, name, format_shape(tensor->shape), format_shape(expected));
  SPW_CHECK(!slot.is_vector() || !is_quantized(tensor->dtype), kUnsupported,
            "{}: tensor '{}' is a vector of type {}; F32, F16 or BF16 expected", files.name, name,
            dtype_name(tensor->dtype));
  BoundWeight weight{slot, tensor->dtype, tensor->extent, {}, place.groups};
  weight.less_one = place.less_one;
  if (slot.scale != 1 || place.less_one) {
    weight.loaded_from = tensor->dtype;
    weight.dtype = DType::kF32;
  }
  if (place.transposed) {
    SPW_CHECK(!is_quantized(tensor->dtype), kUnsupported,
              "{}: tensor '{}' is transposed and of type {}; F32, F16 or BF16 expected", files.name,
              name, dtype_name(tensor->dtype));
    weight.tensor_columns = place.tensor_rows;
    weight.first_column = place.first;
    return weight;
  }
  const auto row = static_cast<uint64_t>(row_bytes(tensor->dtype, slot.stored_cols()));
  const int64_t last_row = place.groups.rows == 0
                               ? slot.stored_rows()
                               : slot.stored_rows() / place.groups.rows * place.groups.stride -
                                     place.groups.stride + place.groups.rows;
  weight.extent->offset += static_cast<uint64_t>(place.first) * row;
  weight.extent->bytes = static_cast<uint64_t>(last_row) * row;
  return weight;
}

// Warns about weights that the files have and the spec lacks, such as biases without
// attention_bias, or layers beyond the last: the reference implementation also leaves them out and
// says so. A head beside a tied embedding is common and does no harm.
void warn_about_unused(const ModelFiles& files, std::span<const WeightName> names,
                       const std::unordered_set<std::string>& used) {
  std::string first;
  size_t count = 0;
  const auto look_at = [&](const std::string& tensor) {
    std::vector<std::string> names_of_it{tensor};
    for (const std::string_view prefix : kNetworkPrefixes)
      names_of_it.push_back(std::string(prefix) + tensor);
    for (const std::string& full : names_of_it) {
      const bool is_weight = std::any_of(names.begin(), names.end(), [&](const WeightName& name) {
        return name.weight != "head" && is_name_of(name.pattern, full);
      });
      if (!is_weight || used.contains(full)) continue;
      if (count++ == 0) first = tensor;
    }
  };
  for (const TensorInfo& tensor : files.tensors) look_at(tensor.name);
  for (const UnsupportedTensor& tensor : files.unsupported) look_at(tensor.name);
  if (count == 0) return;
  log_warning(
      "{}: tensor '{}'{} left out, as the model's settings do not ask for it; if it was trained "
      "with it, answers are wrong",
      files.name, printable(first),
      count == 1 ? " is" : fmt::format(" and {} more are", count - 1));
}

}  // namespace

std::span<const Family* const> families() {
  static constexpr std::array kFamilies{
      &kLlamaFamily,    &kQwenFamily,   &kNeoXFamily,    &kStableLmFamily, &kGpt2Family,
      &kGptJFamily,     &kPhi3Family,   &kSmolLm3Family, &kFalconFamily,   &kPhi2Family,
      &kCommandRFamily, &kGlmFamily,    &kChatGlmFamily, &kOlmo2Family,    &kGraniteFamily,
      &kGemmaFamily,    &kGemma3Family, &kGlm4Family,    &kOptFamily};
  return kFamilies;
}

namespace {

const char* family_key(const ModelFiles& files) {
  return is_gguf(files) ? "general.architecture" : "model_type";
}
std::span<const std::string_view> names_in(const Family& family, const ModelFiles& files) {
  return is_gguf(files) ? family.gguf_names : family.folder_names;
}

}  // namespace

std::string family_name(const ModelFiles& files) {
  return read_string_or(files.metadata, family_key(files), "");
}

const Family& family_of(const ModelFiles& files) {
  const std::string name = family_name(files);
  std::vector<std::string_view> known;
  for (const Family* family : families()) {
    for (const std::string_view of : names_in(*family, files)) {
      if (of == name && files.format != ModelFiles::Format::kTokenizerFolder) return *family;
      known.push_back(of);
    }
  }
  fail(ErrorCode::kUnsupported, "{}: {} is '{}', which is not supported; {} are", files.name,
       family_key(files), name.empty() ? "missing" : printable(name), fmt::join(known, ", "));
}

bool has_any(const ModelFiles& files, std::span<const WeightName> names,
             std::initializer_list<std::string_view> weights) {
  for (const WeightName& name : names) {
    if (std::find(weights.begin(), weights.end(), name.weight) == weights.end()) continue;
    for (const TensorInfo& tensor : files.tensors) {
      if (is_name_of(name.pattern, tensor.name)) return true;
    }
  }
  return false;
}

std::vector<Extent> BoundWeight::file_extents(int64_t first, int64_t count) const {
  SPW_ASSERT(extent && !is_transposed());
  const auto row = static_cast<uint64_t>(row_bytes(file_dtype(), slot.stored_cols()));
  return extents_of_rows(*extent, groups, row, first, count);
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
  if (slot.is_vector()) return false;
  if (!slot.is_table()) return true;
  // A tied table is also the head.
  return std::ranges::any_of(spec.head->ops, [&](const OpSpec& op) {
    return std::ranges::any_of(
        op.matrices, [&](const MatrixSpec& matrix) { return matrix.same_as == slot.name; });
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
  if (const auto method = try_foreign_quantization(files)) {
    fail(ErrorCode::kUnsupported,
         "{}: {} is not supported; use a folder with the unquantized model, or a GGUF file of it",
         files.name, *method);
  }
  Model model;
  model.spec = make_spec(family.read_shape(files));
  const auto names = family.names(files);
  std::unordered_set<std::string> used;
  for (const WeightSlot& slot : weight_slots(model.spec)) {
    const TensorPlace place = place_of(names, model.spec, slot);
    model.weights.push_back(bind(files, place, slot));
    used.insert(place.name);
  }
  warn_about_unused(files, names, used);
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
  const auto shape = try_known_model(name);
  if (!shape) {
    const std::vector<std::string> names = known_model_names();
    const std::string meant = did_you_mean(name, names);
    fail(ErrorCode::kInvalidArgument, "no known model '{}'{} known are: {}", name,
         meant.empty() ? ";" : meant, fmt::join(names, " "));
  }
  Model model{make_spec(*shape), {}};
  for (const WeightSlot& slot : weight_slots(model.spec)) {
    const bool whole_blocks = slot.cols % dtype_info(dtype).block_elements == 0;
    const DType matrix = whole_blocks ? dtype : DType::kF16;
    model.weights.push_back({slot, slot.is_vector() ? DType::kF32 : matrix, std::nullopt});
  }
  return model;
}

}  // namespace spillway
