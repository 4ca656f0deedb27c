// SPDX-License-Identifier: Apache-2.0
#include "storage/gguf_convert.h"

#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "storage/file.h"
#include "tensor/dequantize.h"

namespace spillway {
namespace {

constexpr std::string_view kFileType = "general.file_type";

// llama.cpp's numbers for a file whose matrices are of one type.
uint32_t file_type_of(DType type) { return type == DType::kF32 ? 0 : type == DType::kF16 ? 1 : 32; }

template <class T>
NumberType narrowest(T value) {
  if (value < T{0}) return std::in_range<int32_t>(value) ? NumberType::kI32 : NumberType::kI64;
  return std::in_range<uint32_t>(value) ? NumberType::kU32 : NumberType::kU64;
}

// Bytes [offset, offset + out.size()) of the tensor in `type`; both are whole blocks of it.
void fill_converted(const TensorInfo& tensor, const File& file, DType type, uint64_t offset,
                    std::span<std::byte> out) {
  const auto element_bytes = static_cast<uint64_t>(row_bytes(type, 1));
  const auto first = static_cast<int64_t>(offset / element_bytes);
  const auto count = static_cast<int64_t>(out.size() / element_bytes);
  std::vector<std::byte> stored(static_cast<size_t>(row_bytes(tensor.dtype, count)));
  file.read_exact(tensor.extent.offset + static_cast<uint64_t>(row_bytes(tensor.dtype, first)),
                  stored);
  std::vector<float> values(static_cast<size_t>(count));
  dequantize_reference(tensor.dtype, stored.data(), values.data(), count);
  quantize_reference(type, values.data(), out.data(), count);
  if (type == DType::kF32) return;
  std::vector<float> back(values.size());
  dequantize_reference(type, out.data(), back.data(), count);
  for (size_t i = 0; i < values.size(); ++i) {
    SPW_CHECK(std::isfinite(back[i]) || !std::isfinite(values[i]), kInvalidArgument,
              "{} has the value {}, which {} does not reach; convert to F32", tensor.name,
              values[i], dtype_name(type));
  }
}

}  // namespace

void copy_gguf_metadata(const Metadata& from, GgufWriter& to) {
  for (const std::string_view key : from.keys()) {
    if (key == "general.alignment" || key.starts_with("split.")) continue;
    std::visit(
        [&]<class T>(const T& value) {
          if constexpr (std::is_same_v<T, bool>) {
            to.add_bool(key, value);
          } else if constexpr (std::is_integral_v<T>) {
            to.add_int(key, narrowest(value), static_cast<int64_t>(value));
          } else if constexpr (std::is_same_v<T, double>) {
            const bool fits = std::isnan(value) || double{static_cast<float>(value)} == value;
            to.add_double(key, fits ? NumberType::kF32 : NumberType::kF64, value);
          } else if constexpr (!std::is_same_v<T, MixedArray>) {
            to.add(key, value);
          }
        },
        *from.find(key));
  }
}

void convert_gguf(const ModelFiles& model, DType type, const std::filesystem::path& path,
                  const ConvertProgress& progress, const std::atomic<bool>* cancel) {
  SPW_CHECK(model.format == ModelFiles::Format::kGguf, kInvalidArgument,
            "{} is no GGUF; only those are converted", model.name);
  SPW_CHECK(type == DType::kF32 || type == DType::kF16 || type == DType::kBF16, kUnsupported,
            "cannot convert to {}; F32, F16 and BF16 are possible", dtype_name(type));
  for (const std::filesystem::path& from : model.paths) {
    std::error_code unknown;
    SPW_CHECK(!std::filesystem::equivalent(from, path, unknown), kInvalidArgument,
              "{} would be overwritten by what is made of it; give another name", path.string());
  }
  GgufWriter writer;
  Metadata kept(model.metadata.source());
  for (const std::string_view key : model.metadata.keys()) {
    if (key != kFileType) kept.add(std::string(key), *model.metadata.find(key));
  }
  writer.add_u32(kFileType, file_type_of(type));
  copy_gguf_metadata(kept, writer);
  std::vector<std::shared_ptr<const File>> files;
  for (const std::filesystem::path& from : model.paths)
    files.push_back(std::make_shared<File>(from));
  uint64_t done = 0, total = 0;
  for (const TensorInfo& tensor : model.tensors) {
    const auto file = files.at(static_cast<size_t>(tensor.extent.file));
    const bool converted = tensor.shape.size() > 1 && tensor.dtype != type;
    const DType to = converted ? type : tensor.dtype;
    const std::vector<int64_t> shape =
        tensor.shape.empty() ? std::vector<int64_t>{1} : tensor.shape;
    total += static_cast<uint64_t>(row_bytes(to, tensor.elements()));
    writer.add_tensor(tensor.name, to, shape,
                      [&tensor, &done, &total, &progress, file, converted, type](
                          uint64_t offset, std::span<std::byte> out) {
                        if (converted) {
                          fill_converted(tensor, *file, type, offset, out);
                        } else {
                          file->read_exact(tensor.extent.offset + offset, out);
                        }
                        done += out.size();
                        if (progress) progress(done, total);
                      });
  }
  writer.write(path, cancel);
}

}  // namespace spillway
