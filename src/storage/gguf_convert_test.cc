// SPDX-License-Identifier: Apache-2.0
#include "storage/gguf_convert.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "storage/child_process.h"
#include "storage/file.h"
#include "storage/gguf_reader.h"
#include "storage/temp_folder.h"
#include "tensor/dequantize.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

constexpr DType kStored[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                             DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K,
                             DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

class GgufConvertTest : public testing::Test {
 protected:
  // A matrix of every type, larger than what is converted at a time for one of them, and a vector.
  fs::path write_model() const {
    GgufWriter writer;
    writer.add("general.architecture", "llama");
    writer.add_u32("general.file_type", 7);
    writer.add_u32("llama.block_count", 3);
    writer.add_int("tiny.negative", NumberType::kI32, -5);
    writer.add_int("tiny.huge", NumberType::kU64, int64_t{1} << 40);
    writer.add_f32("llama.rope.freq_base", 10000.5F);
    writer.add_bool("tiny.yes", true);
    writer.add_ints("tiny.ids", std::vector<int32_t>{-1, 2, 3});
    writer.add("tiny.words", StringArray({"a", "", "ccc"}));
    for (const DType type : kStored) {
      const int64_t rows = type == DType::kQ8_0 ? 4500 : 3;
      std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, rows * 256)));
      fill_random(type, bytes.data(), rows * 256, 5, 0.1F);
      writer.add_tensor("matrix." + std::string(dtype_name(type)), type, {rows, 256}, bytes);
    }
    const float vector[] = {1, 2.5F, -3};
    writer.add_tensor("vector", DType::kF32, {3}, std::as_bytes(std::span(vector)));
    writer.write(folder_.path() / "in.gguf");
    return folder_.path() / "in.gguf";
  }

  static std::vector<std::byte> bytes_of(const ModelFiles& model, const std::string& name) {
    const Extent& extent = model.get(name).extent;
    std::vector<std::byte> bytes(extent.bytes);
    File(model.paths.at(static_cast<size_t>(extent.file))).read_exact(extent.offset, bytes);
    return bytes;
  }
  static std::vector<float> values_of(const ModelFiles& model, const std::string& name) {
    const TensorInfo& tensor = model.get(name);
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    dequantize_reference(tensor.dtype, bytes_of(model, name).data(), values.data(),
                         tensor.elements());
    return values;
  }

  TempFolder folder_;
};

TEST_F(GgufConvertTest, F32HoldsWhatEveryTypeStandsFor) {
  const ModelFiles in = read_gguf(write_model());
  const fs::path path = folder_.path() / "out.gguf";
  uint64_t written = 0, expected = 0;
  convert_gguf(in, DType::kF32, path, [&](uint64_t done, uint64_t total) {
    EXPECT_GT(done, written);
    EXPECT_LE(done, total);
    written = done;
    expected = total;
  });
  EXPECT_GT(written, 0U);
  EXPECT_EQ(written, expected);
  const ModelFiles out = read_gguf(path);
  for (const DType type : kStored) {
    const std::string name = "matrix." + std::string(dtype_name(type));
    EXPECT_EQ(out.get(name).dtype, DType::kF32);
    EXPECT_EQ(out.get(name).shape, in.get(name).shape);
    const auto want = values_of(in, name), got = values_of(out, name);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * 4), 0) << name;
  }
  EXPECT_EQ(bytes_of(out, "vector"), bytes_of(in, "vector"));
}

TEST_F(GgufConvertTest, SixteenBitsAreRoundedAndVectorsStay) {
  const ModelFiles in = read_gguf(write_model());
  for (const DType type : {DType::kF16, DType::kBF16}) {
    const fs::path path = folder_.path() / "out.gguf";
    convert_gguf(in, type, path);
    const ModelFiles out = read_gguf(path);
    for (const char* name : {"matrix.Q8_0", "matrix.Q6_K"}) {
      const auto values = values_of(in, name);
      std::vector<std::byte> want(values.size() * 2);
      quantize_reference(type, values.data(), want.data(), static_cast<int64_t>(values.size()));
      EXPECT_EQ(out.get(name).dtype, type);
      EXPECT_EQ(bytes_of(out, name), want) << name;
    }
    EXPECT_EQ(out.get("vector").dtype, DType::kF32);
    EXPECT_EQ(out.metadata.get_int("general.file_type"), type == DType::kF16 ? 1 : 32);
  }
}

TEST_F(GgufConvertTest, MetadataStays) {
  const ModelFiles in = read_gguf(write_model());
  const fs::path path = folder_.path() / "out.gguf";
  convert_gguf(in, DType::kF32, path);
  const ModelFiles out = read_gguf(path);
  EXPECT_EQ(out.metadata.size(), in.metadata.size());
  for (const std::string_view key : in.metadata.keys()) {
    if (key == "general.file_type") continue;
    EXPECT_EQ(out.metadata.describe(key), in.metadata.describe(key)) << key;
  }
  EXPECT_EQ(out.metadata.get_int("general.file_type"), 0);
}

TEST_F(GgufConvertTest, StopsWhenCancelledAndTheOutputIsAsItWas) {
  const ModelFiles in = read_gguf(write_model());
  const fs::path path = folder_.write("out.gguf", "something else");
  uint64_t last = 0, expected = 0;
  convert_gguf(in, DType::kF32, folder_ / "whole.gguf",
               [&](uint64_t, uint64_t total) { expected = total; });
  // At once, in the middle, and when all is written but has no name yet.
  for (const uint64_t after : {uint64_t{0}, expected / 2, expected}) {
    std::atomic<bool> cancel{after == 0};
    last = 0;
    try {
      convert_gguf(
          in, DType::kF32, path,
          [&](uint64_t done, uint64_t) {
            last = done;
            cancel = done >= after;
          },
          &cancel);
      FAIL() << "not cancelled after " << after;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCancelled);
      EXPECT_NE(std::string(error.what()).find("out.gguf"), std::string::npos) << error.what();
    }
    EXPECT_GE(last, after);
    EXPECT_EQ(last == expected, after == expected);
    EXPECT_EQ(read_text_file(path, 100), "something else");
    EXPECT_EQ(names_in(folder_.path()), 3U);
  }
}

TEST_F(GgufConvertTest, WhatDoesNotFitIsRefusedAndNothingIsLeft) {
  GgufWriter writer;
  writer.add("general.architecture", "llama");
  const float matrix[] = {1, 70000, 3, 4};
  writer.add_tensor("large", DType::kF32, {2, 2}, std::as_bytes(std::span(matrix)));
  writer.write(folder_.path() / "in.gguf");
  const ModelFiles in = read_gguf(folder_.path() / "in.gguf");
  const fs::path path = folder_.path() / "out.gguf";
  try {
    convert_gguf(in, DType::kF16, path);
    FAIL() << "70000 is not an F16";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("large"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_THROW(convert_gguf(in, DType::kF32, in.paths[0]), Error);
  EXPECT_THROW(convert_gguf(in, DType::kQ4_0, path), Error);
  convert_gguf(in, DType::kBF16, path);
}

}  // namespace
}  // namespace spillway
