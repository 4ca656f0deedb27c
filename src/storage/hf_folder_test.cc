// SPDX-License-Identifier: Apache-2.0
#include "storage/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "storage/file.h"
#include "storage/model_files.h"
#include "storage/safetensors_reader.h"
#include "storage/safetensors_writer.h"
#include "storage/test_folder.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

constexpr std::string_view kConfig = R"({"model_type": "llama", "rope_scaling": {"factor": 8.0}})";

// Returns a safetensors file with this header and `data_bytes` zeros.
Bytes safetensors(std::string_view header, size_t data_bytes) {
  Bytes out(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(out.data(), &length, sizeof(length));
  std::memcpy(out.data() + 8, header.data(), header.size());
  return out;
}

ModelFiles parse(const Bytes& bytes) {
  ModelFiles model;
  model.name = "m.safetensors";
  parse_safetensors(MemorySource("m.safetensors", bytes), 0, model);
  model.finish();
  return model;
}

std::string error_with(std::string_view header, size_t data_bytes = 64) {
  return error_of([&] { parse(safetensors(header, data_bytes)); });
}

SafetensorsWriter one_tensor(std::string_view name, std::byte fill = {}) {
  SafetensorsWriter writer;
  writer.add_tensor(name, "F32", std::vector<int64_t>{2, 3}, Bytes(24, fill));
  return writer;
}

TEST(SafetensorsReaderTest, ReadsPlainTypesAndListsOthers) {
  SafetensorsWriter writer;
  writer.add_tensor("a", "F32", std::vector<int64_t>{2, 3}, Bytes(24));
  writer.add_tensor("b", "BF16", std::vector<int64_t>{4}, Bytes(8));
  writer.add_tensor("scalar", "F16", {}, Bytes(2));
  writer.add_tensor("ids", "I64", std::vector<int64_t>{1, 2}, Bytes(16));
  writer.add_tensor("ours", "G4", std::vector<int64_t>{1, 64}, Bytes(36));
  writer.add_tensor("empty", "F32", std::vector<int64_t>{0, 2}, {});
  const ModelFiles model = parse(writer.bytes());
  ASSERT_EQ(model.tensors.size(), 3u);
  EXPECT_EQ(model.get("a").dtype, DType::kF32);
  EXPECT_THAT(model.get("a").shape, ElementsAre(2, 3));
  EXPECT_EQ(model.get("b").extent.offset, model.get("a").extent.offset + 24);
  EXPECT_EQ(model.get("scalar").elements(), 1);
  EXPECT_EQ(model.get("scalar").rows(), 1);
  EXPECT_EQ(model.unsupported.size(), 3u);
  EXPECT_THAT(error_of([&] { model.get("ids"); }), HasSubstr("tensor 'ids' has type I64"));
  // G4 is a type of ours that exists in memory only, so no file can bring it in.
  EXPECT_THAT(error_of([&] { model.get("ours"); }), HasSubstr("tensor 'ours' has type G4"));
  EXPECT_THAT(error_of([&] { model.get("empty"); }), HasSubstr("F32 without elements"));
}

TEST(SafetensorsReaderTest, IgnoresItsMetadata) {
  EXPECT_EQ(error_with(R"({"__metadata__": {"format": "pt", "x": [1, {"y": null}]},
                           "t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})"),
            "no error");
  EXPECT_THAT(error_with(R"({"__metadata__": {}, "__metadata__": {}})"), HasSubstr("twice"));
}

TEST(SafetensorsReaderTest, HeaderLengthIsCheckedBeforeAllocating) {
  for (const uint64_t length : {uint64_t{100}, uint64_t{1} << 40, UINT64_MAX}) {
    Bytes bytes = safetensors("{}", 0);
    std::memcpy(bytes.data(), &length, sizeof(length));
    EXPECT_THAT(error_of([&] { parse(bytes); }), HasSubstr("m.safetensors: header")) << length;
  }
  EXPECT_THAT(error_of([] { parse(Bytes(5)); }), HasSubstr("header length at byte 0 needs 8"));
}

TEST(SafetensorsReaderTest, OffsetsMustFitTheFileAndTheShape) {
  EXPECT_THAT(error_with(R"({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 17]}})"),
              HasSubstr("tensor 't': data_offsets 0 to 17 are 17 bytes, but [4] of F32 takes 16"));
  EXPECT_THAT(error_with(R"({"t": {"dtype": "F32", "shape": [4], "data_offsets": [64, 80]}})"),
              AllOf(HasSubstr("extent"), HasSubstr("ends past the file's")));
  EXPECT_THAT(error_with(R"({"t": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}})"),
              HasSubstr("run backwards"));
  EXPECT_THAT(error_with(R"({"t": {"dtype": "F32", "shape": [4],
                             "data_offsets": [18446744073709551615, 18446744073709551615]}})"),
              HasSubstr("overflow"));
  EXPECT_THAT(error_with(R"({"t": {"dtype": "I64", "shape": [4], "data_offsets": [0, 999]}})"),
              HasSubstr("ends past the file's"));
  EXPECT_THAT(error_with(R"({"t": {"dtype": "F32", "shape": [65536, 65536, 65536, 65536],
                             "data_offsets": [0, 0]}})"),
              HasSubstr("overflows"));
  EXPECT_THAT(error_with(R"({"t": {"dtype": "F32", "shape": [9223372036854775809],
                             "data_offsets": [0, 4]}})"),
              HasSubstr("expected 1 to"));
  EXPECT_THAT(error_with(R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
                             "b": {"dtype": "F32", "shape": [4], "data_offsets": [12, 28]}})"),
              HasSubstr("overlap"));
}

TEST(SafetensorsReaderTest, OddHeadersAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "not a JSON object"},
      {R"(3)", "not a JSON object"},
      {R"("x")", "not a JSON object"},
      {R"(null)", "not a JSON object"},
      {R"({)", "not valid JSON at byte 9"},
      {R"({"t": 3})", "wrong type"},
      {R"({"t": "x"})", "is a string"},
      {R"({"t": [1]})", "has an array where none belongs"},
      {R"({"t": {}})", "lacks its dtype"},
      {R"({"t": {"dtype": "F32"}})", "lacks its shape"},
      {R"({"t": {"dtype": "F32", "shape": [4]}})", "lacks its two data_offsets"},
      {R"({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0]}})", "lacks its two"},
      {R"({"t": {"dtype": 3}})", "wrong type"},
      {R"({"t": {"dtype": null}})", "wrong type"},
      {R"({"t": {"dtype": "F32", "dtype": "F32"}})", "has a field twice"},
      {R"({"t": {"shape": [1], "shape": [1]}})", "has a field twice"},
      {R"({"t": {"shape": [-1]}})", "negative"},
      {R"({"t": {"shape": [1.5]}})", "wrong type"},
      {R"({"t": {"shape": [[1]]}})", "has an array where none belongs"},
      {R"({"t": {"shape": [{}]}})", "has an object inside"},
      {R"({"t": {"shape": {}}})", "has an object inside"},
      {R"({"t": {"shape": [1,1,1,1,1,1,1,1,1]}})", "too many numbers"},
      {R"({"": {}})", "empty name"},
      {R"({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
           "t": {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]}})",
       "tensor 't' is there twice"},
  };
  for (const auto& [header, message] : cases)
    EXPECT_THAT(error_with(header), HasSubstr(message)) << header;
  EXPECT_THAT(error_with(std::string(100'000, '[')), HasSubstr("nested deeper than 64"));
}

TEST(HfFolderTest, ReadsConfigAndASingleFile) {
  const TempFolder folder;
  folder.write("config.json", kConfig);
  folder.write("generation_config.json", R"({"eos_token_id": [2, 3]})");
  folder.write("tokenizer.json", "{}");
  one_tensor("t", std::byte{7}).write(folder / "model.safetensors");
  const ModelFiles model = open_model(folder.path());
  EXPECT_EQ(model.format, ModelFiles::Format::kHuggingFace);
  EXPECT_EQ(model.metadata.get_string("model_type"), "llama");
  EXPECT_EQ(model.metadata.get_double("rope_scaling.factor"), 8.0);
  EXPECT_THAT(model.metadata.get_int_array("generation_config.eos_token_id"), ElementsAre(2, 3));
  EXPECT_EQ(model.try_read_text("tokenizer.json"), "{}");
  EXPECT_EQ(model.try_read_text("merges.txt"), std::nullopt);
  const TensorInfo& tensor = model.get("t");
  Bytes data(tensor.extent.bytes);
  File(model.paths.at(0)).read_exact(tensor.extent.offset, data);
  EXPECT_THAT(data, ::testing::Each(std::byte{7}));
}

class ShardedFolderTest : public ::testing::Test {
 protected:
  ShardedFolderTest() {
    folder_.write("config.json", kConfig);
    one_tensor("t1").write(folder_ / "b.safetensors");
    one_tensor("t2").write(folder_ / "a.safetensors");
  }
  ModelFiles read(std::string_view weight_map) {
    folder_.write(
        "model.safetensors.index.json",
        fmt::format(R"({{"metadata": {{"total_size": 48}}, "weight_map": {}}})", weight_map));
    return read_hf_folder(folder_.path());
  }
  std::string error(std::string_view weight_map) {
    return error_of([&] { read(weight_map); });
  }
  TempFolder folder_;
};

TEST_F(ShardedFolderTest, ReadsEveryShard) {
  const ModelFiles model = read(R"({"t1": "b.safetensors", "t2": "a.safetensors"})");
  EXPECT_EQ(model.paths.size(), 2u);
  EXPECT_EQ(model.get("t1").extent.file, 1);
  EXPECT_EQ(model.get("t2").extent.file, 0);
  EXPECT_EQ(model.paths[1].filename(), "b.safetensors");
}

TEST_F(ShardedFolderTest, NamesWhatIsMissing) {
  EXPECT_THAT(error(R"({"t1": "b.safetensors", "t3": "c.safetensors"})"),
              HasSubstr("shard c.safetensors of model.safetensors.index.json is missing"));
  EXPECT_THAT(error(R"({"t1": "b.safetensors", "t3": "a.safetensors"})"),
              HasSubstr("tensor 't3' is not in a.safetensors"));
  EXPECT_THAT(error(R"({"t1": "a.safetensors", "t2": "b.safetensors"})"),
              HasSubstr("tensor 't1' should be in a.safetensors but is in b.safetensors"));
  EXPECT_THAT(error("[]"), HasSubstr("no weight_map object"));
  EXPECT_THAT(error("null"), HasSubstr("no weight_map object"));
  EXPECT_THAT(error(R"({"t1": 3})"), HasSubstr("weight_map['t1'] is not a file name"));
  EXPECT_THAT(error(R"({"t1": {"x": "b.safetensors"}})"), HasSubstr("is not a file name"));
}

TEST_F(ShardedFolderTest, RefusesPathsAndRepeatedTensors) {
  for (const char* shard : {"../b.safetensors", "/etc/b.safetensors", "..\\\\b.safetensors",
                            "b.bin", "", "x/b.safetensors", "b\\u0000/.safetensors"}) {
    EXPECT_THAT(error(fmt::format(R"({{"t1": "{}"}})", shard)),
                HasSubstr("expected the bare name of a .safetensors file"))
        << shard;
  }
  EXPECT_THAT(error(R"({"t1": "b.safetensors", "t1": "b.safetensors"})"),
              HasSubstr("tensor 't1' is there twice"));
  one_tensor("t1").write(folder_ / "a.safetensors");
  EXPECT_THAT(error(R"({"t1": "b.safetensors", "t2": "a.safetensors"})"),
              HasSubstr("tensor 't1' is there twice"));
}

TEST(HfFolderTest, SaysWhatToDoAboutOtherFolders) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { open_model(folder.path()); }), HasSubstr("no config.json"));
  folder.write("config.json", kConfig);
  EXPECT_THAT(error_of([&] { open_model(folder.path()); }), HasSubstr("neither model.safetensors"));
  folder.write("config.json", "{");
  EXPECT_THAT(error_of([&] { open_model(folder.path()); }),
              HasSubstr("config.json: not valid JSON"));
  folder.write("config.json", std::string(5 << 20, ' '));
  EXPECT_THAT(error_of([&] { open_model(folder.path()); }),
              HasSubstr("config.json has 5242880 bytes"));
}

TEST(OpenModelTest, SaysWhatToDoAboutOtherFiles) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { open_model(folder / "x.gguf"); }), HasSubstr("does not exist"));
  EXPECT_THAT(error_of([&] { open_model(folder.write("a.txt", "hello")); }),
              HasSubstr("is not a GGUF file"));
  EXPECT_THAT(error_of([&] { open_model(folder.write("empty.gguf", "")); }),
              HasSubstr("is not a GGUF file"));
  one_tensor("t").write(folder / "model.safetensors");
  EXPECT_THAT(error_of([&] { open_model(folder / "model.safetensors"); }),
              HasSubstr("give the folder"));
  EXPECT_THAT(error_of([&] { open_model(folder.write("config.json", "{}")); }),
              HasSubstr("give the folder"));
}

TEST(TokenizerFolderTest, NeedsNoModel) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { open_tokenizer(folder.path()); }), HasSubstr("no tokenizer"));
  folder.write("vocab.json", "{}");
  EXPECT_THAT(error_of([&] { open_tokenizer(folder.path()); }), HasSubstr("no tokenizer"));
  folder.write("merges.txt", "a b");
  EXPECT_EQ(open_tokenizer(folder.path()).try_read_text("merges.txt"), "a b");
  folder.write("tokenizer.json", "[]");
  folder.write("config.json", kConfig);
  const ModelFiles model = open_tokenizer(folder.path());
  EXPECT_EQ(model.format, ModelFiles::Format::kTokenizerFolder);
  EXPECT_EQ(model.try_read_text("tokenizer.json"), "[]");
  EXPECT_EQ(model.metadata.get_string("model_type"), "llama");
  EXPECT_THAT(error_of([&] { model.try_read_text("tokenizer.json", 1); }), HasSubstr("more than"));
}

}  // namespace
}  // namespace spillway
