// SPDX-License-Identifier: Apache-2.0
#include "storage/gguf_convert.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "storage/file.h"
#include "storage/gguf_reader.h"
#include "storage/test_child_process.h"
#include "storage/test_folder.h"
#include "tensor/dequantize.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

uint64_t tensor_bytes(const ModelFiles& files) {
  uint64_t sum = 0;
  for (const TensorInfo& tensor : files.tensors) sum += tensor.extent.bytes;
  return sum;
}

constexpr DType kStored[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                             DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K,
                             DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

class GgufConvertTest : public testing::Test {
 protected:
  // Writes a model with a matrix of every type and a vector. One matrix is larger than what is
  // converted at a time.
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

  static ConvertReport convert(const ModelFiles& in, std::string_view mix, const fs::path& path,
                               const ConvertOptions& options = {}) {
    return convert_gguf(convert_input(in), *try_type_mix(mix), path, options);
  }

  TempFolder folder_;
};

TEST_F(GgufConvertTest, F32HoldsWhatEveryTypeStandsFor) {
  const ModelFiles in = read_gguf(write_model());
  const fs::path path = folder_.path() / "out.gguf";
  uint64_t written = 0, expected = 0;
  const auto progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GT(done, written);
    EXPECT_LE(done, total);
    written = done;
    expected = total;
  };
  const ConvertReport report = convert(in, "F32", path, {.progress = progress});
  EXPECT_EQ(report.bytes, expected);
  EXPECT_EQ(report.bytes_before, tensor_bytes(in));
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
    convert(in, dtype_name(type), path);
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
  convert(in, "F32", path);
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
  convert(in, "F32", folder_ / "whole.gguf",
          {.progress = [&](uint64_t, uint64_t total) { expected = total; }});
  // Cancels at the start, in the middle, and when all is written but the file has no name yet.
  for (const uint64_t after : {uint64_t{0}, expected / 2, expected}) {
    std::atomic<bool> cancel{after == 0};
    last = 0;
    try {
      const auto progress = [&](uint64_t done, uint64_t) {
        last = done;
        cancel = done >= after;
      };
      convert(in, "F32", path, {.progress = progress, .cancel = &cancel});
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
    convert(in, "F16", path);
    FAIL() << "70000 is not an F16";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("large"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_THROW(convert(in, "F32", in.paths[0]), Error);
  convert(in, "BF16", path);
}

// Adds the tensors of a small network, in widths that fit some types and not others.
void add_network(GgufWriter& writer, int64_t columns) {
  writer.add("general.architecture", "llama");
  int seed = 0;
  const auto add = [&](const std::string& name, int64_t rows, DType type) {
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, rows * columns)));
    fill_random(type, bytes.data(), rows * columns, static_cast<uint64_t>(++seed), 0.1F);
    writer.add_tensor(name, type, {rows, columns}, bytes);
  };
  add("token_embd.weight", 300, DType::kF16);
  add("output.weight", 300, DType::kF16);
  for (const char* name : {"attn_q", "attn_v", "ffn_down"})
    add("blk.0." + std::string(name) + ".weight", 64, DType::kF32);
  add("blk.0.something", 3, DType::kF16);
  const std::vector<float> norm(static_cast<size_t>(columns), 1.0F);
  writer.add_tensor("output_norm.weight", DType::kF32, {columns}, std::as_bytes(std::span(norm)));
}

TEST_F(GgufConvertTest, QuantizesWithTheErrorOfEachType) {
  GgufWriter writer;
  add_network(writer, 512);
  writer.write(folder_ / "in.gguf");
  const ModelFiles in = read_gguf(folder_ / "in.gguf");
  const struct {
    const char* mix;
    DType main, head;
    int64_t file_type;
  } kCases[] = {{"q8_0", DType::kQ8_0, DType::kQ8_0, 7},
                {"q6_k", DType::kQ6_K, DType::kQ6_K, 18},
                {"q5_k_m", DType::kQ5_K, DType::kQ6_K, 17},
                {"Q4_K_M", DType::kQ4_K, DType::kQ6_K, 15},
                {"q4_0", DType::kQ4_0, DType::kQ6_K, 2}};
  for (const auto& c : kCases) {
    const ConvertReport report = convert(in, c.mix, folder_ / "out.gguf");
    const ModelFiles out = read_gguf(folder_ / "out.gguf");
    EXPECT_EQ(out.get("blk.0.attn_q.weight").dtype, c.main) << c.mix;
    EXPECT_EQ(out.get("token_embd.weight").dtype, c.main) << c.mix;
    EXPECT_EQ(out.get("output.weight").dtype, c.head) << c.mix;
    EXPECT_EQ(out.get("blk.0.something").dtype, DType::kF16) << c.mix;
    EXPECT_EQ(bytes_of(out, "output_norm.weight"), bytes_of(in, "output_norm.weight"));
    EXPECT_EQ(out.metadata.get_int("general.file_type"), c.file_type);
    EXPECT_EQ(out.metadata.get_int("general.quantization_version"), 2);
    EXPECT_TRUE(report.fallbacks.empty());
    EXPECT_EQ(report.bytes, tensor_bytes(out));
    EXPECT_EQ(report.requantized, 0);
    for (const TensorInfo& tensor : out.tensors) {
      const auto want = values_of(in, tensor.name), got = values_of(out, tensor.name);
      double off = 0, size = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        off += std::pow(double{want[i]} - double{got[i]}, 2);
        size += std::pow(double{want[i]}, 2);
      }
      const double bound = tensor.dtype == DType::kQ8_0   ? 0.01
                           : tensor.dtype == DType::kQ6_K ? 0.02
                           : tensor.dtype == DType::kQ5_K ? 0.04
                                                          : 0.1;
      EXPECT_LT(std::sqrt(off / size), bound) << c.mix << " " << tensor.name;
    }
  }
}

TEST_F(GgufConvertTest, FallsBackWhereAWidthIsNoWholeBlockAndSaysSo) {
  for (const auto& [columns, wide, narrow] : {std::tuple{int64_t{96}, DType::kQ5_0, DType::kQ8_0},
                                              std::tuple{int64_t{40}, DType::kF16, DType::kF16}}) {
    GgufWriter writer;
    add_network(writer, columns);
    writer.write(folder_ / "in.gguf");
    const ConvertReport report =
        convert(read_gguf(folder_ / "in.gguf"), "q4_k_m", folder_ / "out.gguf");
    const ModelFiles out = read_gguf(folder_ / "out.gguf");
    EXPECT_EQ(out.get("blk.0.attn_q.weight").dtype, wide);
    EXPECT_EQ(out.get("output.weight").dtype, narrow);
    ASSERT_EQ(report.fallbacks.size(), 5U);
    EXPECT_EQ(report.fallbacks[1].tensor, "output.weight");
    EXPECT_EQ(report.fallbacks[1].wanted, DType::kQ6_K);
    EXPECT_EQ(report.fallbacks[1].type, narrow);
    EXPECT_EQ(report.fallbacks[1].columns, columns);
  }
}

TEST_F(GgufConvertTest, TheNumberOfThreadsDoesNotChangeAByte) {
  const ModelFiles in = read_gguf(write_model());
  for (const char* mix : {"F16", "q8_0", "q4_0", "q4_k_m", "q5_k_m"}) {
    convert(in, mix, folder_ / "alone.gguf");
    for (const int threads : {2, 3, 7}) {
      ThreadPool pool(threads);
      convert(in, mix, folder_ / "together.gguf", {.pool = &pool});
      EXPECT_EQ(read_text_file(folder_ / "alone.gguf", size_t{1} << 30),
                read_text_file(folder_ / "together.gguf", size_t{1} << 30))
          << mix << " with " << threads;
    }
  }
}

TEST_F(GgufConvertTest, CountsWhatIsQuantizedAgain) {
  GgufWriter writer;
  writer.add("general.architecture", "llama");
  for (const DType type : kStored) {
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(type, 512)));
    fill_random(type, bytes.data(), 512, 5, 0.1F);
    writer.add_tensor(std::string(dtype_name(type)) + ".weight", type, {2, 256}, bytes);
  }
  writer.write(folder_ / "in.gguf");
  // The three plain types and Q8_0 itself do not count.
  EXPECT_EQ(convert(read_gguf(folder_ / "in.gguf"), "q8_0", folder_ / "out.gguf").requantized, 9);
}

TEST_F(GgufConvertTest, ANanIsNamedAndNotQuantized) {
  GgufWriter writer;
  writer.add("general.architecture", "llama");
  std::vector<float> values(1024, 0.5F);
  values[700] = std::nanf("");
  writer.add_tensor("blk.0.attn_q.weight", DType::kF32, {4, 256}, std::as_bytes(std::span(values)));
  writer.write(folder_ / "in.gguf");
  for (const char* mix : {"q8_0", "q4_k_m"}) {
    try {
      convert(read_gguf(folder_ / "in.gguf"), mix, folder_ / "out.gguf");
      FAIL() << "no level stands for a NaN";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("blk.0.attn_q.weight has the value nan"),
                std::string::npos)
          << error.what();
    }
    EXPECT_FALSE(fs::exists(folder_ / "out.gguf"));
  }
}

TEST_F(GgufConvertTest, HalvesOfAHeadAreLaidIntoEachOther) {
  GgufWriter writer;
  writer.add("general.architecture", "llama");
  std::vector<float> rows;  // 2 heads of 4 rows, 3 columns; each value is its row
  for (int i = 0; i < 24; ++i) rows.push_back(static_cast<float>(i / 3));
  writer.add_tensor("q.weight", DType::kF32, {8, 3}, std::as_bytes(std::span(rows)));
  writer.write(folder_ / "in.gguf");
  ConvertInput input = convert_input(read_gguf(folder_ / "in.gguf"));
  input.tensors[0].parts[0].interleaved_rows = 4;
  convert_gguf(input, *try_type_mix("F32"), folder_ / "out.gguf");
  const auto got = values_of(read_gguf(folder_ / "out.gguf"), "q.weight");
  const int want[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], static_cast<float>(want[i / 3])) << i;
}

TEST_F(GgufConvertTest, RowsComeFromGroupsAndColumns) {
  GgufWriter writer;
  writer.add("general.architecture", "llama");
  std::vector<float> rows;  // 12 rows of 3 columns; value = 10 * row + column
  for (int i = 0; i < 36; ++i) rows.push_back(static_cast<float>(i / 3 * 10 + i % 3));
  writer.add_tensor("a.weight", DType::kF32, {12, 3}, std::as_bytes(std::span(rows)));
  std::vector<float> columns;  // [3, 5]: value = 100 + 10 * column + row
  for (int i = 0; i < 15; ++i) columns.push_back(static_cast<float>(100 + i % 5 * 10 + i / 5));
  writer.add_tensor("b.weight", DType::kF32, {3, 5}, std::as_bytes(std::span(columns)));
  writer.write(folder_ / "in.gguf");
  ConvertInput input = convert_input(read_gguf(folder_ / "in.gguf"));
  // The parts are rows 2 and 3 of each 6, three columns from the second on, and the first two rows.
  ConvertRows groups = input.tensors[0].parts[0], first = groups;
  ConvertRows transposed = input.tensors[1].parts[0];
  groups.extent.offset += 2 * 3 * sizeof(float);
  groups.extent.bytes = 8 * 3 * sizeof(float);
  groups.rows = 4;
  groups.groups = {.rows = 2, .stride = 6};
  transposed.rows = 3;
  transposed.tensor_columns = 5;
  transposed.first_column = 1;
  first.rows = 2;
  first.extent.bytes = 2 * 3 * sizeof(float);
  input.tensors[0].shape = {9, 3};
  input.tensors[0].parts = {groups, transposed, first};
  input.tensors.pop_back();
  const int want[] = {20, 30, 80, 90, 110, 120, 130, 0, 10};
  for (const char* type : {"F32", "F16"}) {
    convert_gguf(input, *try_type_mix(type), folder_ / "out.gguf");
    const auto got = values_of(read_gguf(folder_ / "out.gguf"), "a.weight");
    ASSERT_EQ(got.size(), 27U);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i], static_cast<float>(want[i / 3] + static_cast<int>(i % 3))) << i;
  }
}

}  // namespace
}  // namespace spillway
