// SPDX-License-Identifier: Apache-2.0
// Writes a model with F16 matrices, either unchanged or rounded to 4-bit groups of 64 along the
// input or the output dimension. grouping_perplexity.py compares these models.
//
//   round_to_groups IN.gguf OUT.gguf plain|input|output
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/model.h"
#include "storage/file.h"
#include "storage/gguf_convert.h"
#include "storage/gguf_writer.h"
#include "storage/model_files.h"
#include "tensor/dequantize.h"
#include "tensor/quantize_g4.h"

namespace spillway {
namespace {

constexpr int64_t kGroup = 64;

// Rounds `count` <= 64 values that are `stride` apart. Fewer than 64 (the last group of a
// dimension) are a group, too.
void round_group(float* values, int64_t count, int64_t stride) {
  float group[kGroup];
  for (int64_t i = 0; i < kGroup; ++i) group[i] = values[std::min(i, count - 1) * stride];
  std::byte block[64];
  SPW_CHECK(quantize_g4(group, block, kGroup), kInvalidArgument,
            "a weight does not fit 4-bit groups");
  dequantize_reference(DType::kG4, block, group, kGroup);
  for (int64_t i = 0; i < count; ++i) values[i * stride] = group[i];
}

void round_matrix(std::vector<float>& w, int64_t rows, int64_t cols, bool along_input) {
  if (along_input) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t k = 0; k < cols; k += kGroup)
        round_group(w.data() + row * cols + k, std::min(kGroup, cols - k), 1);
    }
    return;
  }
  for (int64_t row = 0; row < rows; row += kGroup) {
    for (int64_t k = 0; k < cols; ++k)
      round_group(w.data() + row * cols + k, std::min(kGroup, rows - row), cols);
  }
}

void convert(const std::string& in, const std::string& out, const std::string& mode) {
  SPW_CHECK(mode == "plain" || mode == "input" || mode == "output", kInvalidArgument,
            "mode '{}'; give plain, input or output", mode);
  const ModelFiles files = open_model(in);
  const Model model = describe_model(files);
  std::set<std::pair<int32_t, uint64_t>> multiplied;  // matrices, by file and offset
  for (const BoundWeight& weight : model.weights) {
    if (model.is_multiplied(weight.slot))
      multiplied.emplace(weight.extent->file, weight.extent->offset);
  }
  GgufWriter writer;
  copy_gguf_metadata(files.metadata, writer);
  for (const TensorInfo& tensor : files.tensors) {
    const File file(files.paths.at(static_cast<size_t>(tensor.extent.file)));
    std::vector<std::byte> stored(tensor.extent.bytes);
    file.read_exact(tensor.extent.offset, stored);
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    dequantize_reference(tensor.dtype, stored.data(), values.data(), tensor.elements());
    const bool matrix = tensor.shape.size() > 1;
    if (matrix) {
      // Values are rounded to F16 before, as they are when an F16 model is loaded.
      stored.resize(values.size() * 2);
      quantize_reference(DType::kF16, values.data(), stored.data(), tensor.elements());
      dequantize_reference(DType::kF16, stored.data(), values.data(), tensor.elements());
    }
    if (mode != "plain" && multiplied.contains({tensor.extent.file, tensor.extent.offset}))
      round_matrix(values, tensor.rows(), tensor.cols(), mode == "input");
    const DType type = matrix ? DType::kF16 : DType::kF32;
    stored.resize(static_cast<size_t>(row_bytes(type, tensor.elements())));
    quantize_reference(type, values.data(), stored.data(), tensor.elements());
    writer.add_tensor(tensor.name, type, tensor.shape, stored);
  }
  writer.write(out);
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: {} IN.gguf OUT.gguf plain|input|output\n", argv[0]);
    return 2;
  }
  try {
    spillway::convert(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
