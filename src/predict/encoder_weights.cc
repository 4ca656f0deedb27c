// SPDX-License-Identifier: Apache-2.0
#include "predict/encoder_weights.h"

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/digest.h"
#include "base/error.h"
#include "base/printable.h"
#include "storage/file.h"
#include "tensor/dequantize.h"
#include "tensor/packed_layout.h"
#include "tensor/quantize_blocks.h"

namespace spillway {
namespace {

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Reads tensors one by one into the device's memory.
class Loader {
 public:
  Loader(Device& device, const ModelFiles& files, const EncoderSpec& spec,
         EncoderPrecision precision, std::vector<Buffer>& memory)
      : device_(device), files_(files), precision_(precision), memory_(memory) {
    for (const auto& path : files.paths) opened_.push_back(std::make_unique<File>(path));
    const std::string prefix = encoder_prefix(spec.family);
    const std::string first = encoder_table_names().tokens + ".weight";
    if (files.find(first) == nullptr && files.find(prefix + first) != nullptr) prefix_ = prefix;
  }

  // Loads a matrix for Ops::linear(), packed in the layout that the device prefers.
  WeightView matrix(const std::string& name, int64_t rows, int64_t cols) {
    const DType type = stored_type(cols);
    return load(name, {rows, cols}, type, device_.preferred_layout(type, rows, cols));
  }
  WeightView table(const std::string& name, int64_t rows, int64_t cols) {
    return load(name, {rows, cols}, stored_type(cols), WeightLayout::kRows);
  }
  WeightView vector(const std::string& name, int64_t size) {
    return load(name, {size}, DType::kF32, WeightLayout::kRows);
  }
  EncoderLinear linear(const std::string& name, int64_t rows, int64_t cols) {
    return {matrix(name + ".weight", rows, cols), vector(name + ".bias", rows)};
  }
  // Old BERT files call a LayerNorm's weight and bias gamma and beta.
  EncoderLinear norm(const std::string& name, int64_t size) {
    const bool is_old = files_.find(prefix_ + name + ".gamma") != nullptr;
    return {vector(name + (is_old ? ".gamma" : ".weight"), size),
            vector(name + (is_old ? ".beta" : ".bias"), size)};
  }
  std::string digest() const { return digest_.digits(); }

 private:
  DType stored_type(int64_t cols) const {
    const bool is_whole = cols % dtype_info(DType::kQ8_0).block_elements == 0;
    return precision_ == EncoderPrecision::kFast && is_whole ? DType::kQ8_0 : DType::kF32;
  }

  WeightView load(const std::string& name, const std::vector<int64_t>& shape, DType type,
                  WeightLayout layout) {
    const TensorInfo& tensor = files_.get(prefix_ + name);
    SPW_CHECK(tensor.shape == shape, kInvalidArgument,
              "{}: tensor {} is {}, config.json makes it {}", files_.name, printable(tensor.name),
              format_shape(tensor.shape), format_shape(shape));
    const std::vector<float> values = read(tensor);
    const int64_t cols = shape.back(), rows = tensor.elements() / cols;
    Buffer buffer =
        device_.allocate(static_cast<size_t>(rows * row_bytes(type, cols)), MemoryTag::kWeights);
    SPW_CHECK(quantize_blocks(type, values.data(), buffer.data(), rows * cols), kInvalidArgument,
              "{}: tensor {} has values that are no numbers or too large; download it again",
              files_.name, printable(tensor.name));
    if (layout == WeightLayout::kGroups16)
      pack_groups(type, buffer.data(), buffer.data(), rows / kGroupRows, cols);
    const WeightView view{type, rows, cols, buffer.data(), layout};
    memory_.push_back(std::move(buffer));
    return view;
  }

  std::vector<float> read(const TensorInfo& tensor) {
    std::vector<std::byte> bytes(tensor.extent.bytes);
    opened_[static_cast<size_t>(tensor.extent.file)]->read_exact(tensor.extent.offset, bytes);
    digest_.add(text_of(bytes));
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    dequantize_reference(tensor.dtype, bytes.data(), values.data(), tensor.elements());
    return values;
  }

  Device& device_;
  const ModelFiles& files_;
  EncoderPrecision precision_;
  std::vector<Buffer>& memory_;
  std::vector<std::unique_ptr<File>> opened_;
  std::string prefix_;
  Digest digest_;
};

}  // namespace

EncoderWeights::EncoderWeights(Device& device, const ModelFiles& files, const EncoderSpec& spec,
                               EncoderPrecision precision) {
  Loader loader(device, files, spec, precision, memory_);
  const int64_t width = spec.width;
  const EncoderTableNames tables = encoder_table_names();
  tokens = loader.table(tables.tokens + ".weight", spec.vocabulary, width);
  positions = loader.table(tables.positions + ".weight", spec.positions, width);
  if (spec.token_types > 0) types = loader.table(tables.types + ".weight", spec.token_types, width);
  norm = loader.norm(tables.norm, width);
  for (int64_t i = 0; i < spec.layers; ++i) {
    const EncoderLayerNames names = encoder_layer_names(spec.family, i);
    layers.push_back({.query = loader.linear(names.query, width, width),
                      .key = loader.linear(names.key, width, width),
                      .value = loader.linear(names.value, width, width),
                      .attention_out = loader.linear(names.attention_out, width, width),
                      .up = loader.linear(names.up, spec.inner_width, width),
                      .down = loader.linear(names.down, width, spec.inner_width),
                      .attention_norm = loader.norm(names.attention_norm, width),
                      .out_norm = loader.norm(names.out_norm, width)});
  }
  digest = loader.digest();
}

}  // namespace spillway
