// SPDX-License-Identifier: Apache-2.0
#include "storage/gguf_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/printable.h"
#include "storage/file_writer.h"
#include "storage/gguf_types.h"

namespace spillway {
namespace {

constexpr size_t kFillBytes = size_t{4} << 20;

void put_bytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  const size_t at = out.size();
  out.resize(at + bytes.size());
  if (!bytes.empty()) std::memcpy(out.data() + at, bytes.data(), bytes.size());
}
template <class T>
void put(std::vector<std::byte>& out, T value) {
  put_bytes(out, std::as_bytes(std::span(&value, 1)));
}
void put_string(std::vector<std::byte>& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  put_bytes(out, std::as_bytes(std::span(text)));
}

uint64_t padding(uint64_t bytes, uint64_t alignment) {
  return (alignment - bytes % alignment) % alignment;
}

// Returns the bytes of 256 elements, which are whole blocks of every type.
uint64_t whole_bytes(DType type) { return static_cast<uint64_t>(row_bytes(type, 256)); }

}  // namespace

GgufWriter::GgufWriter(uint32_t alignment) : alignment_(alignment) {
  SPW_CHECK(alignment > 0, kInvalidArgument, "alignment 0");
  if (alignment != kGgufDefaultAlignment) add_u32("general.alignment", alignment);
}

void GgufWriter::begin_value(std::string_view key, uint32_t gguf_type) {
  put_string(keys_, key);
  put(keys_, gguf_type);
  ++key_count_;
}

void GgufWriter::add(std::string_view key, std::string_view value) {
  begin_value(key, kGgufString);
  put_string(keys_, value);
}

void GgufWriter::add_bool(std::string_view key, bool value) {
  add_int(key, NumberType::kBool, value ? 1 : 0);
}
void GgufWriter::add_u32(std::string_view key, uint32_t value) {
  add_int(key, NumberType::kU32, value);
}
void GgufWriter::add_f32(std::string_view key, float value) {
  add_double(key, NumberType::kF32, double{value});
}

void GgufWriter::add_int(std::string_view key, NumberType type, int64_t value) {
  if (is_float(type)) return add_double(key, type, static_cast<double>(value));
  begin_value(key, gguf_number_type(type));
  // In little endian the low bytes come first, so the first bytes are the number in its width.
  put_bytes(keys_, std::as_bytes(std::span(&value, 1)).first(number_bytes(type)));
}

void GgufWriter::add_double(std::string_view key, NumberType type, double value) {
  if (!is_float(type)) return add_int(key, type, static_cast<int64_t>(value));
  begin_value(key, gguf_number_type(type));
  if (type == NumberType::kF32) {
    put(keys_, static_cast<float>(value));
  } else {
    put(keys_, value);
  }
}

void GgufWriter::add(std::string_view key, const StringArray& values) {
  begin_value(key, kGgufArray);
  put(keys_, kGgufString);
  put<uint64_t>(keys_, values.size());
  for (const std::string_view value : values) put_string(keys_, value);
}

void GgufWriter::add(std::string_view key, const NumberArray& values) {
  begin_value(key, kGgufArray);
  put(keys_, gguf_number_type(values.type));
  put<uint64_t>(keys_, values.size());
  put_bytes(keys_, values.raw);
}

void GgufWriter::add_ints(std::string_view key, std::span<const int32_t> values) {
  const auto raw = std::as_bytes(values);
  add(key, NumberArray{NumberType::kI32, {raw.begin(), raw.end()}});
}

void GgufWriter::add_floats(std::string_view key, std::span<const float> values) {
  const auto raw = std::as_bytes(values);
  add(key, NumberArray{NumberType::kF32, {raw.begin(), raw.end()}});
}

void GgufWriter::add_tensor(std::string_view name, DType dtype, std::vector<int64_t> shape,
                            std::span<const std::byte> bytes) {
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  add_tensor(name, dtype, std::move(shape),
             [copy = std::move(copy)](uint64_t offset, std::span<std::byte> out) {
               SPW_CHECK(offset <= copy.size() && out.size() <= copy.size() - offset,
                         kInvalidArgument, "a tensor to write has only {} bytes", copy.size());
               if (!out.empty()) std::memcpy(out.data(), copy.data() + offset, out.size());
             });
}

void GgufWriter::add_tensor(std::string_view name, DType dtype, std::vector<int64_t> shape,
                            Fill fill) {
  SPW_CHECK(!shape.empty(), kInvalidArgument, "tensor '{}' has no dimensions", name);
  gguf_tensor_type(dtype);  // throws if the type has no number
  std::optional<int64_t> bytes = row_bytes(dtype, shape.back());
  for (size_t i = 0; i + 1 < shape.size() && bytes; ++i) bytes = try_mul(*bytes, shape[i]);
  SPW_CHECK(bytes && *bytes >= 0, kInvalidArgument, "tensor '{}' is too large", name);
  tensors_.push_back(
      {std::string(name), dtype, std::move(shape), static_cast<uint64_t>(*bytes), std::move(fill)});
}

std::vector<std::byte> GgufWriter::header() const {
  std::vector<std::byte> out;
  put(out, kGgufMagic);
  put<uint32_t>(out, 3);
  put<uint64_t>(out, tensors_.size());
  put(out, key_count_);
  put_bytes(out, keys_);
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    put_string(out, tensor.name);
    put(out, static_cast<uint32_t>(tensor.shape.size()));
    for (auto it = tensor.shape.rbegin(); it != tensor.shape.rend(); ++it) put(out, *it);
    put(out, gguf_tensor_type(tensor.dtype));
    put(out, offset);
    offset += tensor.bytes + padding(tensor.bytes, alignment_);
  }
  out.resize(out.size() + padding(out.size(), alignment_));
  return out;
}

std::vector<std::byte> GgufWriter::bytes() const {
  std::vector<std::byte> out = header();
  for (const Tensor& tensor : tensors_) {
    const size_t start = out.size();
    out.resize(start + tensor.bytes + padding(tensor.bytes, alignment_));
    tensor.fill(0, std::span(out).subspan(start, tensor.bytes));
  }
  return out;
}

void GgufWriter::write(const std::filesystem::path& path, const std::atomic<bool>* cancel) const {
  const auto look_for_cancel = [&] {
    SPW_CHECK(cancel == nullptr || !cancel->load(), kCancelled, "stopped; {} was not written",
              printable_path(path));
  };
  FileWriter file(path);
  file.write(header());
  std::vector<std::byte> part;
  for (const Tensor& tensor : tensors_) {
    const uint64_t part_bytes = kFillBytes / whole_bytes(tensor.dtype) * whole_bytes(tensor.dtype);
    for (uint64_t at = 0; at < tensor.bytes; at += part.size()) {
      look_for_cancel();
      part.resize(std::min<uint64_t>(part_bytes, tensor.bytes - at));
      tensor.fill(at, part);
      file.write(part);
    }
    part.assign(padding(tensor.bytes, alignment_), std::byte{0});
    file.write(part);
  }
  file.sync();
  look_for_cancel();
  file.commit();
}

}  // namespace spillway
