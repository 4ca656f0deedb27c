// SPDX-License-Identifier: Apache-2.0
#include "storage/gguf_reader.h"

#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/printable.h"
#include "storage/byte_cursor.h"
#include "storage/file.h"
#include "storage/gguf_types.h"
#include "storage/tensor_layout.h"

namespace spillway {
namespace {

constexpr uint64_t kMaxStringBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxGgufNameBytes = 256;
constexpr uint32_t kMaxGgufDims = 4;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
// The smallest size of a key and of a tensor, against which declared counts are checked.
constexpr uint64_t kLeastKeyBytes = 8 + 4 + 1;
constexpr uint64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;

// Parses one file: its metadata, and its tensors with Extent::file = `file`.
class GgufParser {
 public:
  GgufParser(const ByteSource& source, int32_t file)
      : cursor_(source), source_(source), file_(file), metadata(source.label()) {}

  void parse() {
    const auto [tensor_count, key_count] = parse_preamble();
    for (uint64_t i = 0; i < key_count; ++i) parse_key(i);
    parse_alignment();
    tensors.reserve(tensor_count);
    for (uint64_t i = 0; i < tensor_count; ++i) parse_tensor(i);
    place_tensors();
  }

 private:
  ByteCursor cursor_;
  const ByteSource& source_;
  int32_t file_;
  uint64_t alignment_ = kGgufDefaultAlignment;

 public:
  Metadata metadata;
  std::vector<TensorInfo> tensors;

 private:
  std::pair<uint64_t, uint64_t> parse_preamble() {
    SPW_CHECK(cursor_.read<uint32_t>("magic") == kGgufMagic, kInvalidArgument,
              "{}: not a GGUF file: it does not start with 'GGUF'", source_.label());
    const auto version = cursor_.read<uint32_t>("version");
    SPW_CHECK(
        version == 0 || (version & 0xffff) != 0, kUnsupported,
        "{}: a big-endian GGUF file (version {:#010x} at byte 4); only little-endian ones are "
        "supported",
        source_.label(), version);
    SPW_CHECK(version == 2 || version == 3, kUnsupported,
              "{}: GGUF version {} at byte 4 is not supported, only 2 and 3; convert the model "
              "again with current tools",
              source_.label(), version);
    const uint64_t tensors_declared =
        read_count("tensor count", kLeastTensorBytes, ModelFiles::kMaxTensors);
    const uint64_t keys_declared = read_count("key count", kLeastKeyBytes, Metadata::kMaxKeys);
    return {tensors_declared, keys_declared};
  }

  uint64_t read_count(std::string_view field, uint64_t least_bytes, uint64_t max) {
    const uint64_t at = cursor_.position();
    const auto count = cursor_.read<uint64_t>(field);
    SPW_CHECK(count <= max && count <= cursor_.remaining() / least_bytes, kInvalidArgument,
              "{}: {} {} at byte {} is more than {} or than the file's {} bytes can hold",
              source_.label(), field, count, at, max, source_.size());
    return count;
  }

  void parse_key(uint64_t number) {
    cursor_.set_context(fmt::format("key {}", number));
    const uint64_t key_at = cursor_.position();
    std::string key = cursor_.read_string("its name", Metadata::kMaxKeyBytes);
    SPW_CHECK(!key.empty(), kInvalidArgument, "{}empty name at byte {}", cursor_.prefix(), key_at);
    cursor_.set_context(fmt::format("key '{}'", printable(key)));
    const auto type = cursor_.read<uint32_t>("value type");
    const uint64_t value_at = cursor_.position();
    Value value = type == kGgufString  ? Value(cursor_.read_string("value", kMaxStringBytes))
                  : type == kGgufArray ? parse_array()
                                       : parse_number(type);
    metadata.add(std::move(key), std::move(value), value_at);
    cursor_.set_context({});
  }

  NumberType number_type(uint32_t type, std::string_view what) {
    const auto number = try_number_from_gguf(type);
    SPW_CHECK(number.has_value(), kInvalidArgument, "{}unknown {} {} at byte {}", cursor_.prefix(),
              what, type, cursor_.position() - sizeof(type));
    return *number;
  }

  Value parse_number(uint32_t type) {
    const uint64_t at = cursor_.position();
    NumberArray one{number_type(type, "value type"), {}};
    one.raw.resize(number_bytes(one.type));
    cursor_.read_bytes(one.raw, "value");
    switch (one.type) {
      case NumberType::kBool:
        check_bools(one, at);
        return one.bits(0) != 0;
      case NumberType::kU8:
      case NumberType::kU16:
      case NumberType::kU32:
      case NumberType::kU64:
        return one.bits(0);
      case NumberType::kF32:
      case NumberType::kF64:
        return one.number(0);
      default:
        return static_cast<int64_t>(one.bits(0));
    }
  }

  Value parse_array() {
    const auto type = cursor_.read<uint32_t>("element type");
    SPW_CHECK(type != kGgufArray, kUnsupported,
              "{}an array of arrays at byte {}; nested arrays are not supported", cursor_.prefix(),
              cursor_.position() - sizeof(type));
    if (type == kGgufString) return parse_strings();
    NumberArray array{number_type(type, "element type"), {}};
    const uint64_t at = cursor_.position();
    const auto bytes = try_mul(cursor_.read<uint64_t>("array length"),
                               static_cast<uint64_t>(number_bytes(array.type)));
    SPW_CHECK(bytes.has_value(), kInvalidArgument, "{}array length at byte {} overflows",
              cursor_.prefix(), at);
    cursor_.require(*bytes, "array");
    const uint64_t values_at = cursor_.position();
    array.raw.resize(*bytes);
    cursor_.read_bytes(array.raw, "array");
    if (array.type == NumberType::kBool) check_bools(array, values_at);
    return array;
  }

  // Reads all lengths first, so that the text is allocated once and at its real size.
  Value parse_strings() {
    const uint64_t at = cursor_.position();
    const auto count = cursor_.read<uint64_t>("array length");
    SPW_CHECK(count <= cursor_.remaining() / sizeof(uint64_t), kInvalidArgument,
              "{}array length {} at byte {} is more strings than the file's {} bytes can hold",
              cursor_.prefix(), count, at, source_.size());
    const uint64_t start = cursor_.position();
    uint64_t total = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t length = cursor_.read_string_length("string of the array", kMaxStringBytes);
      cursor_.skip(length, "string of the array");
      total += length;  // cannot exceed the file's size
    }
    SPW_CHECK(total <= StringArray::kMaxBytes, kInvalidArgument,
              "{}the array at byte {} has {} bytes of text, over {}", cursor_.prefix(), at, total,
              StringArray::kMaxBytes);
    cursor_.seek(start);
    StringArray array;
    array.reserve(count, total);
    std::string text;
    for (uint64_t i = 0; i < count; ++i) {
      text.resize(cursor_.read_string_length("string of the array", kMaxStringBytes));
      cursor_.read_bytes(std::as_writable_bytes(std::span(text)), "string of the array");
      array.push_back(text);
    }
    return array;
  }

  void check_bools(const NumberArray& array, uint64_t at) {
    for (size_t i = 0; i < array.raw.size(); ++i) {
      SPW_CHECK(std::to_integer<int>(array.raw[i]) <= 1, kInvalidArgument,
                "{}bool at byte {} is {}, expected 0 or 1", cursor_.prefix(), at + i,
                std::to_integer<int>(array.raw[i]));
    }
  }

  void parse_alignment() {
    const auto alignment = metadata.try_int("general.alignment");
    if (!alignment) return;
    SPW_CHECK(*alignment > 0 && static_cast<uint64_t>(*alignment) <= kMaxAlignment &&
                  std::has_single_bit(static_cast<uint64_t>(*alignment)),
              kInvalidArgument, "{}: general.alignment is {}, expected a power of two up to {}",
              source_.label(), *alignment, kMaxAlignment);
    alignment_ = static_cast<uint64_t>(*alignment);
  }

  void parse_tensor(uint64_t number) {
    cursor_.set_context(fmt::format("tensor {}", number));
    const uint64_t name_at = cursor_.position();
    TensorInfo tensor;
    tensor.name = cursor_.read_string("its name", kMaxGgufNameBytes);
    SPW_CHECK(!tensor.name.empty(), kInvalidArgument, "{}empty name at byte {}", cursor_.prefix(),
              name_at);
    cursor_.set_context(fmt::format("tensor '{}'", printable(tensor.name)));
    const uint64_t dims_at = cursor_.position();
    const auto dims = cursor_.read<uint32_t>("dimension count");
    SPW_CHECK(dims >= 1 && dims <= kMaxGgufDims, kInvalidArgument,
              "{}dimension count at byte {} is {}, expected 1 to {}", cursor_.prefix(), dims_at,
              dims, kMaxGgufDims);
    tensor.shape.resize(dims);
    for (uint32_t i = 0; i < dims; ++i) {
      // The file lists the fastest dimension first. A value that does not fit int64 becomes
      // negative, which checked_tensor_bytes() refuses.
      tensor.shape[dims - 1 - i] = static_cast<int64_t>(cursor_.read<uint64_t>("dimension"));
    }
    const uint64_t type_at = cursor_.position();
    const auto type = cursor_.read<uint32_t>("type");
    const auto dtype = try_dtype_from_gguf(type);
    if (!dtype) fail_type(type, type_at);
    tensor.dtype = *dtype;
    const std::string prefix = fmt::format("{}(at byte {}) ", cursor_.prefix(), dims_at);
    tensor.extent = {file_, 0, checked_tensor_bytes(prefix, *dtype, tensor.shape)};
    const uint64_t offset_at = cursor_.position();
    tensor.extent.offset = cursor_.read<uint64_t>("offset");
    SPW_CHECK(tensor.extent.offset % alignment_ == 0, kInvalidArgument,
              "{}offset {} at byte {} is not a multiple of the alignment {}", cursor_.prefix(),
              tensor.extent.offset, offset_at, alignment_);
    tensors.push_back(std::move(tensor));
    cursor_.set_context({});
  }

  [[noreturn]] void fail_type(uint32_t type, uint64_t at) {
    const std::string_view name = gguf_tensor_type_name(type);
    const std::string text = name.empty() ? fmt::format("number {}", type) : std::string(name);
    fail(ErrorCode::kUnsupported,
         "{}type {} at byte {} is not supported; supported are F32, F16, BF16, Q4_0, Q4_1, Q5_0, "
         "Q5_1, Q8_0 and Q2_K to Q6_K",
         cursor_.prefix(), text, at);
  }

  // Makes offsets absolute: they count from the end of the header, padded to the alignment.
  void place_tensors() {
    const auto data_start = try_align_up(cursor_.position(), alignment_);
    SPW_CHECK(data_start.has_value(), kInvalidArgument, "{}: the header's size overflows",
              source_.label());
    for (TensorInfo& tensor : tensors) {
      const std::string prefix =
          fmt::format("{}: tensor '{}': ", source_.label(), printable(tensor.name));
      const auto offset = try_add(*data_start, tensor.extent.offset);
      SPW_CHECK(offset.has_value(), kInvalidArgument, "{}offset {} overflows", prefix,
                tensor.extent.offset);
      check_extent(prefix, *offset, tensor.extent.bytes, source_.size());
      tensor.extent.offset = *offset;
    }
  }
};

int64_t split_count(const Metadata& metadata) {
  return metadata.try_int("split.count", 0, 65535).value_or(1);
}

void append(ModelFiles& model, GgufParser& parser, const std::filesystem::path& path,
            uint64_t file_bytes) {
  model.paths.push_back(path);
  model.file_bytes.push_back(file_bytes);
  SPW_CHECK(parser.tensors.size() <= ModelFiles::kMaxTensors - model.tensors.size(),
            kInvalidArgument, "{}: more than {} tensors", model.name, ModelFiles::kMaxTensors);
  std::move(parser.tensors.begin(), parser.tensors.end(), std::back_inserter(model.tensors));
}

// Reads shards 2 and up of a set, whose names follow from the name of the first.
void read_other_shards(const std::filesystem::path& first, int64_t count, ModelFiles& model) {
  const std::string name = first.filename().string();
  const std::string ending = fmt::format("-00001-of-{:05}.gguf", count);
  SPW_CHECK(name.size() > ending.size() && name.ends_with(ending), kInvalidArgument,
            "{}: split.count is {}, so the first file's name must end in '{}'; open that one",
            model.name, count, ending);
  SPW_CHECK(model.metadata.get_int("split.no", 0, 65535) == 0, kInvalidArgument,
            "{}: split.no is {}, expected 0 for the first file", model.name,
            model.metadata.describe("split.no"));
  const std::string stem = name.substr(0, name.size() - ending.size());
  for (int64_t i = 1; i < count; ++i) {
    const auto path =
        first.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, count);
    const File file(path);
    GgufParser parser(file, static_cast<int32_t>(i));
    parser.parse();
    SPW_CHECK(parser.metadata.get_int("split.no") == i && split_count(parser.metadata) == count,
              kInvalidArgument, "{}: split.no {} of split.count {}, expected {} of {}",
              file.label(), parser.metadata.describe("split.no"),
              parser.metadata.describe("split.count"), i, count);
    append(model, parser, path, file.size());
  }
  const auto declared = model.metadata.try_int("split.tensors.count");
  SPW_CHECK(!declared || *declared == static_cast<int64_t>(model.tensors.size()), kInvalidArgument,
            "{}: the {} files hold {} tensors, split.tensors.count says {}", model.name, count,
            model.tensors.size(), *declared);
}

}  // namespace

ModelFiles read_gguf(const std::filesystem::path& path) {
  const File file(path);
  GgufParser parser(file, 0);
  parser.parse();
  ModelFiles model;
  model.name = file.label();
  model.metadata = std::move(parser.metadata);
  append(model, parser, path, file.size());
  if (const int64_t count = split_count(model.metadata); count > 1)
    read_other_shards(path, count, model);
  model.finish();
  return model;
}

ModelFiles parse_gguf(const ByteSource& source) {
  GgufParser parser(source, 0);
  parser.parse();
  ModelFiles model;
  model.name = source.label();
  model.metadata = std::move(parser.metadata);
  append(model, parser, {}, source.size());
  SPW_CHECK(split_count(model.metadata) <= 1, kUnsupported, "{}: one file of a split model",
            source.label());
  model.finish();
  return model;
}

}  // namespace spillway
