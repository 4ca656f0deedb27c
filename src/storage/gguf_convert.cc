// SPDX-License-Identifier: Apache-2.0
#include "storage/gguf_convert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "storage/file.h"
#include "tensor/dequantize.h"
#include "tensor/quantize_blocks.h"
#include "tensor/transpose.h"

namespace spillway {
namespace {

constexpr std::string_view kFileType = "general.file_type";
constexpr std::string_view kQuantizationVersion = "general.quantization_version";

template <class T>
NumberType narrowest(T value) {
  if (value < T{0}) return std::in_range<int32_t>(value) ? NumberType::kI32 : NumberType::kI64;
  return std::in_range<uint32_t>(value) ? NumberType::kU32 : NumberType::kU64;
}

using Files = std::vector<std::unique_ptr<const File>>;

// Reads the values of a tensor in their stored type and the new tensor's order.
class StoredValues {
 public:
  StoredValues(const ConvertTensor& tensor, const Files& files) : tensor_(tensor), files_(files) {
    for (const ConvertRows& part : tensor.parts) {
      transposed_.emplace_back();
      if (part.tensor_columns > 0) transpose(part, transposed_.back());
    }
  }

  // Reads elements [first, first + count) of the new tensor.
  void read(int64_t first, int64_t count, std::byte* out) const {
    int64_t before = 0;  // elements of the parts before
    for (size_t i = 0; i < tensor_.parts.size() && count > 0; ++i) {
      const int64_t of_part = tensor_.parts[i].rows * tensor_.cols();
      const int64_t here = std::min(count, before + of_part - first);
      if (here > 0) {
        read_part(i, first - before, here, out);
        out += bytes(here);
        first += here;
        count -= here;
      }
      before += of_part;
    }
  }

 private:
  int64_t bytes(int64_t elements) const { return row_bytes(tensor_.dtype, elements); }

  // Needs memory for the whole stored tensor and for its rows.
  void transpose(const ConvertRows& part, std::vector<std::byte>& rows) const {
    std::vector<std::byte> stored(part.extent.bytes);
    file_of(part).read_exact(part.extent.offset, stored);
    rows.resize(static_cast<size_t>(bytes(part.rows * tensor_.cols())));
    transpose_columns(stored, part.tensor_columns, part.first_column, part.rows, tensor_.cols(),
                      bytes(1), rows.data());
  }
  const File& file_of(const ConvertRows& part) const {
    return *files_.at(static_cast<size_t>(part.extent.file));
  }

  void read_part(size_t number, int64_t first, int64_t count, std::byte* out) const {
    const ConvertRows& part = tensor_.parts[number];
    if (part.tensor_columns > 0) {
      std::memcpy(out, transposed_[number].data() + bytes(first),
                  static_cast<size_t>(bytes(count)));
      return;
    }
    if (part.is_plain()) return read_file(part, first, count, out);
    const int64_t cols = tensor_.cols();
    while (count > 0) {
      const int64_t row = first / cols, column = first % cols;
      // `rows` counts rows that are adjacent in the file, too.
      int64_t stored = row, rows = 1;
      if (const int64_t head = part.interleaved_rows; head > 0) {
        const int64_t place = row % head;
        stored = row - place + place % 2 * (head / 2) + place / 2;
      } else {
        rows = part.groups.rows - row % part.groups.rows;
      }
      if (part.groups.rows > 0)
        stored = stored / part.groups.rows * part.groups.stride + stored % part.groups.rows;
      const int64_t elements = std::min(count, rows * cols - column);
      read_file(part, stored * cols + column, elements, out);
      out += bytes(elements);
      first += elements;
      count -= elements;
    }
  }
  void read_file(const ConvertRows& part, int64_t from, int64_t elements, std::byte* to) const {
    file_of(part).read_exact(part.extent.offset + static_cast<uint64_t>(bytes(from)),
                             std::span(to, static_cast<size_t>(bytes(elements))));
  }

  const ConvertTensor& tensor_;
  const Files& files_;
  std::vector<std::vector<std::byte>> transposed_;  // rows of parts stored as columns; else empty
};

// A piece consists of whole blocks of every type.
constexpr int64_t kPieceElements = 4096;

void convert_piece(const ConvertTensor& tensor, const std::byte* stored, DType type, std::byte* out,
                   int64_t count) {
  float values[kPieceElements];
  dequantize_reference(tensor.dtype, stored, values, count);
  if (tensor.plus_one)
    for (int64_t i = 0; i < count; ++i) values[i] += 1;
  if (quantize_blocks(type, values, out, count)) return;
  const float* peak = std::max_element(values, values + count, [](float a, float b) {
    return !std::isnan(a) && (std::isnan(b) || std::fabs(a) < std::fabs(b));
  });
  fail(ErrorCode::kInvalidArgument,
       "{} has the value {}, which {} does not reach; convert to F32 or BF16", tensor.name, *peak,
       dtype_name(type));
}

// Fills bytes [offset, offset + out.size()) of the tensor in `type`. They are whole multiples of
// 256 elements, except at the end.
void fill_converted(const ConvertTensor& tensor, const StoredValues& values, DType type,
                    uint64_t offset, std::span<std::byte> out, ThreadPool* pool) {
  const DTypeInfo& info = dtype_info(type);
  const auto elements_in = [&](uint64_t bytes) {
    return static_cast<int64_t>(bytes) / info.block_bytes * info.block_elements;
  };
  const int64_t first = elements_in(offset), count = elements_in(out.size());
  std::vector<std::byte> stored(static_cast<size_t>(row_bytes(tensor.dtype, count)));
  values.read(first, count, stored.data());
  const auto convert = [&](int64_t begin, int64_t end, int /*worker*/) {
    for (int64_t at = begin; at < end; at += kPieceElements) {
      convert_piece(tensor, stored.data() + row_bytes(tensor.dtype, at), type,
                    out.data() + row_bytes(type, at), std::min(kPieceElements, end - at));
    }
  };
  if (pool == nullptr) {
    convert(0, count, 0);
  } else {
    pool->parallel_for(count, kPieceElements, convert);
  }
}

bool shares_values(const Metadata& m) {
  const auto number = [&](const char* key) { return m.try_int(key).value_or(0); };
  return number("llama.block_count") == 80 &&
         number("llama.attention.head_count") != number("llama.attention.head_count_kv");
}

// Chooses the type of each tensor.
std::vector<ChosenType> choose_types(const ConvertInput& input, const TypeMix& mix) {
  std::vector<MixTensor> matrices;
  for (const ConvertTensor& tensor : input.tensors) {
    if (!tensor.fixed_type) matrices.push_back({tensor.name, tensor.dtype, tensor.shape.back()});
  }
  const auto chosen = choose_types(mix, matrices, shares_values(input.metadata));
  std::vector<ChosenType> all;
  size_t next = 0;
  for (const ConvertTensor& tensor : input.tensors) {
    all.push_back(tensor.fixed_type ? ChosenType{*tensor.fixed_type, *tensor.fixed_type}
                                    : chosen[next++]);
  }
  return all;
}

ConvertReport report_of(const ConvertInput& input, const std::vector<ChosenType>& chosen) {
  ConvertReport report;
  report.tensors_of.resize(kDTypeCount);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const ConvertTensor& tensor = input.tensors[i];
    const auto [type, wanted] = chosen[i];
    report.bytes_before += static_cast<uint64_t>(row_bytes(tensor.dtype, tensor.elements()));
    report.bytes += static_cast<uint64_t>(row_bytes(type, tensor.elements()));
    ++report.tensors_of[static_cast<size_t>(type)];
    if (type != wanted)
      report.fallbacks.push_back({tensor.name, wanted, type, tensor.shape.back()});
    if (is_quantized(tensor.dtype) && is_quantized(type) && tensor.dtype != type)
      ++report.requantized;
  }
  return report;
}

void add_metadata(const ConvertInput& input, const TypeMix& mix, GgufWriter& writer) {
  Metadata kept(input.metadata.source());
  for (const std::string_view key : input.metadata.keys()) {
    if (key != kFileType && key != kQuantizationVersion)
      kept.add(std::string(key), *input.metadata.find(key));
  }
  copy_gguf_metadata(kept, writer);
  writer.add_u32(kFileType, mix.file_type);
  if (is_quantized(mix.main)) writer.add_u32(kQuantizationVersion, 2);
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

int64_t ConvertTensor::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

ConvertInput convert_input(const ModelFiles& model) {
  SPW_CHECK(model.format == ModelFiles::Format::kGguf, kInvalidArgument, "{} is no GGUF",
            model.name);
  ConvertInput input{model.name, model.paths, model.metadata, {}};
  for (const TensorInfo& tensor : model.tensors) {
    ConvertTensor made{tensor.name, tensor.dtype, tensor.shape, {}, {}, {}};
    if (made.shape.empty()) made.shape = {1};
    made.parts.push_back({.rows = made.elements() / made.cols(), .extent = tensor.extent});
    if (made.shape.size() == 1) made.fixed_type = made.dtype;
    input.tensors.push_back(std::move(made));
  }
  return input;
}

ConvertReport convert_gguf(const ConvertInput& input, const TypeMix& mix,
                           const std::filesystem::path& path, const ConvertOptions& options) {
  for (const std::filesystem::path& from : input.paths) {
    std::error_code unknown;
    SPW_CHECK(!std::filesystem::equivalent(from, path, unknown), kInvalidArgument,
              "{} would be overwritten by what is made of it; give another name", path.string());
  }
  const std::vector<ChosenType> chosen = choose_types(input, mix);
  const ConvertReport report = report_of(input, chosen);
  GgufWriter writer;
  add_metadata(input, mix, writer);
  Files files;
  for (const std::filesystem::path& from : input.paths)
    files.push_back(std::make_unique<File>(from));
  uint64_t done = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const ConvertTensor& tensor = input.tensors[i];
    const DType type = chosen[i].type;
    if (!tensor.values.empty()) {
      SPW_ASSERT(type == DType::kF32);
      writer.add_tensor(tensor.name, type, tensor.shape, std::as_bytes(std::span(tensor.values)));
      done += tensor.values.size() * sizeof(float);
      continue;
    }
    writer.add_tensor(
        tensor.name, type, tensor.shape,
        [&tensor, &files, &done, &report, &options, type, values = std::optional<StoredValues>()](
            uint64_t offset, std::span<std::byte> out) mutable {
          if (tensor.dtype == type && tensor.is_plain()) {
            const Extent& extent = tensor.parts.front().extent;
            files.at(static_cast<size_t>(extent.file))->read_exact(extent.offset + offset, out);
          } else {
            if (!values) values.emplace(tensor, files);
            fill_converted(tensor, *values, type, offset, out, options.pool);
            const auto end = row_bytes(type, tensor.elements());
            if (static_cast<int64_t>(offset + out.size()) == end) values.reset();
          }
          done += out.size();
          if (options.progress) options.progress(done, report.bytes);
        });
  }
  writer.write(path, options.cancel);
  return report;
}

}  // namespace spillway
