// SPDX-License-Identifier: Apache-2.0
#include "storage/gguf_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include "storage/file.h"
#include "storage/gguf_types.h"
#include "storage/gguf_writer.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

std::vector<std::string_view> list(const StringArray& array) {
  return {array.begin(), array.end()};
}

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

ModelFiles parse(const Bytes& bytes) { return parse_gguf(MemorySource("m.gguf", bytes)); }

Bytes zeros(size_t n) { return Bytes(n); }

// A file with one tensor "t" of F32 [2, 8] after the key "k".
Bytes small_file() {
  GgufWriter writer;
  writer.add_u32("k", 1);
  writer.add_tensor("t", DType::kF32, {2, 8}, zeros(64));
  return writer.bytes();
}
// The byte offsets of the fields in small_file().
constexpr size_t kTensorCount = 8, kKeyCount = 16, kKeyLength = 24, kValueType = 33;
constexpr size_t kNameLength = 41, kName = 49, kDims = 50, kDim0 = 54, kType = 70, kOffset = 74;

template <class T>
Bytes with(Bytes bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  return bytes;
}

std::string error_with(size_t at, auto value) {
  return error_of([&] { parse(with(small_file(), at, value)); });
}

TEST(GgufReaderTest, ReadsEveryValueType) {
  GgufWriter writer;
  const std::pair<const char*, NumberType> ints[] = {
      {"u8", NumberType::kU8},   {"i8", NumberType::kI8},   {"u16", NumberType::kU16},
      {"i16", NumberType::kI16}, {"u32", NumberType::kU32}, {"i32", NumberType::kI32},
      {"u64", NumberType::kU64}, {"i64", NumberType::kI64}};
  for (const auto& [key, type] : ints) writer.add_int(key, type, key[0] == 'i' ? -100 : 100);
  writer.add_double("f32", NumberType::kF32, 0.25);
  writer.add_double("f64", NumberType::kF64, 1e300);
  writer.add_bool("bool", true);
  writer.add("string", "gr\xc3\xbc\xc3\x9f");
  writer.add("strings", StringArray({"a", "", "b\n"}));
  writer.add("none", StringArray());
  writer.add_ints("ints", std::vector<int32_t>{1, -2});
  writer.add_floats("floats", std::vector<float>{0.5f, -1.0f});
  writer.add("bools", NumberArray{NumberType::kBool, {std::byte{1}, std::byte{0}}});
  const ModelFiles model = parse(writer.bytes());
  const Metadata& m = model.metadata;
  for (const auto& [key, type] : ints) EXPECT_EQ(m.get_int(key), key[0] == 'i' ? -100 : 100) << key;
  EXPECT_EQ(m.get_double("f32"), 0.25);
  EXPECT_EQ(m.get_double("f64"), 1e300);
  EXPECT_TRUE(m.get_bool("bool"));
  EXPECT_EQ(m.get_string("string"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_THAT(list(m.get_string_array("strings")), ElementsAre("a", "", "b\n"));
  EXPECT_TRUE(m.get_string_array("none").empty());
  EXPECT_THAT(m.get_int_array("ints"), ElementsAre(1, -2));
  EXPECT_THAT(m.get_float_array("floats"), ElementsAre(0.5f, -1.0f));
  EXPECT_EQ(m.describe("bools"), "[2 bool: true, false]");
  EXPECT_TRUE(model.tensors.empty());  // a vocabulary-only file
}

std::vector<DType> file_dtypes() {
  std::vector<DType> types;
  std::copy_if(std::begin(kAllDTypes), std::end(kAllDTypes), std::back_inserter(types),
               [](DType type) { return !is_memory_only(type); });
  return types;
}

class GgufAlignmentTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(GgufAlignmentTest, ReadsTensorsOfEveryTypeThroughAFile) {
  GgufWriter writer(GetParam());
  for (const DType type : file_dtypes()) {
    writer.add_tensor(dtype_name(type), type, {3, 512}, [type](uint64_t, std::span<std::byte> out) {
      std::ranges::fill(out, static_cast<std::byte>(type));
    });
  }
  const TempFolder folder;
  writer.write(folder / "m.gguf");
  const ModelFiles model = read_gguf(folder / "m.gguf");
  const File file(model.paths.at(0));
  ASSERT_EQ(model.tensors.size(), file_dtypes().size());
  EXPECT_EQ(model.file_bytes.at(0), file.size());
  for (const DType type : file_dtypes()) {
    const TensorInfo& tensor = model.get(dtype_name(type));
    EXPECT_EQ(tensor.dtype, type);
    EXPECT_THAT(tensor.shape, ElementsAre(3, 512));
    EXPECT_EQ(tensor.rows(), 3);
    EXPECT_EQ(tensor.cols(), 512);
    EXPECT_EQ(tensor.extent.bytes, static_cast<uint64_t>(3 * row_bytes(type, 512)));
    EXPECT_EQ(tensor.extent.offset % GetParam(), 0u);
    Bytes data(tensor.extent.bytes);
    file.read_exact(tensor.extent.offset, data);
    EXPECT_THAT(data, ::testing::Each(static_cast<std::byte>(type)));
  }
  EXPECT_EQ(model.find("other"), nullptr);
  EXPECT_THAT(error_of([&] { model.get("other"); }), HasSubstr("tensor 'other' is missing"));
}
INSTANTIATE_TEST_SUITE_P(Alignments, GgufAlignmentTest, ::testing::Values(8, 32, 64, 4096));

TEST(GgufReaderTest, VersionTwoIsLikeThree) {
  EXPECT_EQ(parse(with(small_file(), 4, uint32_t{2})).tensors.size(), 1u);
}

TEST(GgufReaderTest, OtherVersionsAndByteOrdersAreUnsupported) {
  EXPECT_THAT(error_with(4, uint32_t{1}), HasSubstr("GGUF version 1 at byte 4 is not supported"));
  EXPECT_THAT(error_with(4, uint32_t{4}), HasSubstr("version 4"));
  EXPECT_THAT(error_with(4, uint32_t{0x03000000}), HasSubstr("big-endian"));
  EXPECT_THAT(error_with(0, 'X'), HasSubstr("not a GGUF file"));
}

TEST(GgufReaderTest, CountsBeyondTheFileAreRefusedBeforeAllocating) {
  for (const uint64_t n : {uint64_t{100}, uint64_t{1} << 40, UINT64_MAX}) {
    EXPECT_THAT(error_with(kTensorCount, n), HasSubstr("at byte 8 is more than"));
    EXPECT_THAT(error_with(kKeyCount, n), HasSubstr("at byte 16 is more than"));
    EXPECT_THAT(error_with(kKeyLength, n << 10), HasSubstr("at byte 24 has a length of"));
  }
  EXPECT_THAT(error_with(kNameLength, uint64_t{200}),
              AllOf(HasSubstr("tensor 0: its name at byte 49 needs 200 bytes"),
                    HasSubstr("download it again")));
}

TEST(GgufReaderTest, BadTensorsAreRefusedByName) {
  EXPECT_THAT(error_with(kNameLength, uint64_t{0}), HasSubstr("tensor 0: empty name at byte 41"));
  EXPECT_THAT(error_with(kDims, uint32_t{0}),
              HasSubstr("tensor 't': dimension count at byte 50 is 0, expected 1 to 4"));
  EXPECT_THAT(error_with(kDims, uint32_t{5}), HasSubstr("is 5, expected"));
  EXPECT_THAT(error_with(kDim0, uint64_t{0}),
              HasSubstr("tensor 't': (at byte 50) dimension 2 of 2 is 0"));
  EXPECT_THAT(error_with(kDim0, int64_t{-8}), HasSubstr("is -8, expected 1 to"));
  EXPECT_THAT(error_with(kDim0, int64_t{1} << 31), HasSubstr("is 2147483648, expected 1 to"));
  EXPECT_THAT(error_with(kOffset, uint64_t{1}), HasSubstr("offset 1 at byte 74 is not a multiple"));
  EXPECT_THAT(error_with(kOffset, ~uint64_t{31}), HasSubstr("overflows"));
  EXPECT_THAT(
      error_with(kOffset, uint64_t{32}),
      HasSubstr("m.gguf: tensor 't': extent 128+64 ends past the file's 160 bytes; the file "
                "is truncated, download it again"));
  EXPECT_THAT(error_with(kType, uint32_t{12}), HasSubstr("rows of 8 elements are not whole Q4_K"));
  EXPECT_THAT(error_with(kName, '\n'), "no error");
  EXPECT_THAT(
      error_of([] { parse(with(with(small_file(), kName, '\xff'), kOffset, uint64_t{1})); }),
      HasSubstr("tensor '\\xff'"));
}

TEST(GgufReaderTest, UnsupportedTypesAreNamed) {
  EXPECT_THAT(error_with(kType, uint32_t{23}), HasSubstr("tensor 't': type IQ4_XS at byte 70"));
  EXPECT_THAT(error_with(kType, uint32_t{39}), HasSubstr("type MXFP4"));
  EXPECT_THAT(error_with(kType, uint32_t{34}), HasSubstr("type TQ1_0"));
  EXPECT_THAT(error_with(kType, uint32_t{4321}), HasSubstr("type number 4321"));
  try {
    parse(with(small_file(), kType, uint32_t{23}));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  }
}

TEST(GgufReaderTest, EveryTypeHasItsNumber) {
  for (const DType type : file_dtypes())
    EXPECT_EQ(try_dtype_from_gguf(gguf_tensor_type(type)), type);
  EXPECT_EQ(gguf_tensor_type(DType::kQ8_0), 8u);
  EXPECT_EQ(gguf_tensor_type(DType::kQ6_K), 14u);
  EXPECT_EQ(gguf_tensor_type(DType::kBF16), 30u);
}

TEST(GgufReaderTest, TypesThatAreInMemoryOnlyHaveNoNumber) {
  GgufWriter writer;
  try {
    writer.add_tensor("w", DType::kG4, {1, 64}, Bytes(36));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("G4"));
  }
  for (uint32_t number = 0; number < 1000; ++number)
    EXPECT_NE(try_dtype_from_gguf(number), DType::kG4);
}

TEST(GgufReaderTest, DimensionProductsMustNotWrap) {
  GgufWriter writer;
  writer.add_tensor("t", DType::kF32, {1, 1, 1, 1}, zeros(4));
  Bytes bytes = writer.bytes();
  for (size_t i = 0; i < 4; ++i) {  // the first dimension is at byte 37 = 24 + 8 + 1 + 4
    const int64_t n = int64_t{1} << 16;
    std::memcpy(bytes.data() + 37 + 8 * i, &n, sizeof(n));
  }
  EXPECT_THAT(error_of([&] { parse(bytes); }), HasSubstr("product of its dimensions overflows"));
}

TEST(GgufReaderTest, BadValuesAreRefused) {
  EXPECT_THAT(error_with(kValueType, uint32_t{13}),
              HasSubstr("key 'k': unknown value type 13 at byte 33"));
  EXPECT_THAT(error_with(kValueType, uint32_t{8}), HasSubstr("key 'k': value at byte 37"));
  GgufWriter writer;
  writer.add("a", NumberArray{NumberType::kBool, {std::byte{1}, std::byte{2}}});
  const Bytes bools = writer.bytes();
  EXPECT_THAT(error_of([&] { parse(bools); }), HasSubstr("bool at byte 50 is 2, expected 0 or 1"));
  EXPECT_THAT(error_of([&] { parse(with(bools, 37, uint32_t{77})); }),
              HasSubstr("key 'a': unknown element type 77 at byte 37"));
  EXPECT_THAT(error_of([&] { parse(with(bools, 37, uint32_t{9})); }),
              HasSubstr("array of arrays at byte 37"));
  EXPECT_THAT(error_of([&] { parse(with(with(bools, 37, uint32_t{12}), 41, UINT64_MAX)); }),
              HasSubstr("array length at byte 41 overflows"));
  EXPECT_THAT(error_of([&] { parse(with(with(bools, 37, uint32_t{8}), 41, uint64_t{1} << 60)); }),
              HasSubstr("is more strings than the file"));
}

TEST(GgufReaderTest, RepeatedKeysAndTensorsAreRefused) {
  GgufWriter keys;
  keys.add_u32("k", 1);
  keys.add_u32("k", 1);
  EXPECT_THAT(error_of([&] { parse(keys.bytes()); }),
              HasSubstr("key 'k' at byte 54 is there twice"));
  GgufWriter tensors;
  tensors.add_tensor("t", DType::kF32, {8}, zeros(32));
  tensors.add_tensor("t", DType::kF32, {8}, zeros(32));
  EXPECT_THAT(error_of([&] { parse(tensors.bytes()); }), HasSubstr("tensor 't' is there twice"));
}

TEST(GgufReaderTest, OverlappingTensorsAreRefused) {
  GgufWriter writer;
  writer.add_tensor("a", DType::kF32, {16}, zeros(64));
  writer.add_tensor("b", DType::kF32, {16}, zeros(64));
  Bytes bytes = writer.bytes();
  // The offset field of tensor b comes after 24 + 33 bytes of tensor a and 25 bytes of b.
  EXPECT_THAT(error_of([&] { parse(with(bytes, 24 + 33 + 25, uint64_t{32})); }),
              AllOf(HasSubstr("'a' (extent"), HasSubstr("'b' (extent"), HasSubstr("overlap")));
}

TEST(GgufReaderTest, AlignmentMustBeAPowerOfTwo) {
  for (const int64_t alignment : {0, 3, 48, -32, 1 << 30}) {
    GgufWriter writer;
    writer.add_int("general.alignment", NumberType::kI32, alignment);
    EXPECT_THAT(error_of([&] { parse(writer.bytes()); }), HasSubstr("expected a power of two"))
        << alignment;
  }
}

// Writes shard `no` of a model in `count` files, each with one tensor.
void write_shard(const std::filesystem::path& path, int no, int count) {
  GgufWriter writer;
  if (no == 0) writer.add("general.name", "split");
  writer.add_int("split.no", NumberType::kU16, no);
  writer.add_int("split.count", NumberType::kU16, count);
  writer.add_int("split.tensors.count", NumberType::kI32, count);
  writer.add_tensor(fmt::format("t{}", no), DType::kF32, {8}, zeros(32));
  writer.write(path);
}

TEST(GgufReaderTest, ReadsAllFilesOfASplitModel) {
  const TempFolder folder;
  write_shard(folder / "m-00001-of-00003.gguf", 0, 3);
  write_shard(folder / "m-00002-of-00003.gguf", 1, 3);
  EXPECT_THAT(error_of([&] { read_gguf(folder / "m-00001-of-00003.gguf"); }),
              HasSubstr("m-00003-of-00003.gguf"));
  write_shard(folder / "m-00003-of-00003.gguf", 2, 3);
  const ModelFiles model = read_gguf(folder / "m-00001-of-00003.gguf");
  EXPECT_EQ(model.paths.size(), 3u);
  EXPECT_EQ(model.get("t2").extent.file, 2);
  EXPECT_EQ(model.metadata.get_string("general.name"), "split");
  EXPECT_THAT(error_of([&] { read_gguf(folder / "m-00002-of-00003.gguf"); }),
              HasSubstr("the first file's name must end in '-00001-of-00003.gguf'"));
  write_shard(folder / "m-00003-of-00003.gguf", 1, 3);
  EXPECT_THAT(error_of([&] { read_gguf(folder / "m-00001-of-00003.gguf"); }),
              HasSubstr("expected 2 of 3"));
}

}  // namespace
}  // namespace spillway
