// SPDX-License-Identifier: Apache-2.0
#include "storage/torch_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/file.h"
#include "storage/model_files.h"
#include "storage/safetensors_writer.h"
#include "storage/test_folder.h"
#include "storage/test_torch_file.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kConfig = R"({"model_type": "opt"})";

ModelFiles parse(std::string_view file) {
  ModelFiles model;
  model.name = "w.bin";
  parse_torch(MemorySource("w.bin", std::as_bytes(std::span(file))), 0, model);
  model.finish(ModelFiles::SharedExtents::kAllowed);
  return model;
}
std::string error_of_file(std::string_view file) {
  return error_of([&] { parse(file); });
}

// A file with these tensors and storages of so many bytes.
std::string file_of(const std::vector<TestTensor>& tensors, const std::vector<size_t>& storages) {
  std::vector<std::string> contents;
  for (const size_t bytes : storages)
    contents.emplace_back(bytes, static_cast<char>('a' + contents.size()));
  return test_torch_file(TestPickle().state_dict(tensors).text, contents);
}
std::string file_of(const TestTensor& tensor, size_t storage_bytes = 64) {
  return file_of(std::vector{tensor}, {storage_bytes});
}

TestTensor tensor(std::string name, std::vector<int64_t> shape, int storage = 0,
                  int64_t storage_elements = 16) {
  return {.name = std::move(name),
          .type = "FloatStorage",
          .storage = storage,
          .storage_elements = storage_elements,
          .shape = std::move(shape)};
}

TestTensor at_offset(TestTensor tensor, int64_t offset) {
  tensor.offset = offset;
  return tensor;
}
TestTensor with_strides(TestTensor tensor, std::vector<int64_t> strides) {
  tensor.strides = std::move(strides);
  return tensor;
}
TestTensor of_type(TestTensor tensor, std::string type) {
  tensor.type = std::move(type);
  return tensor;
}

std::string bytes_of(std::string_view file, const TensorInfo& info) {
  return std::string(file.substr(info.extent.offset, info.extent.bytes));
}

TEST(TorchReaderTest, FindsTheBytesOfTensors) {
  TestTensor parameter = of_type(tensor("c", {4}, 2, 4), "BFloat16Storage");
  parameter.is_parameter = true;
  const std::string file =
      file_of({tensor("a", {2, 3}, 0, 6), of_type(tensor("b", {5}, 1, 5), "HalfStorage"), parameter,
               tensor("scalar", {}, 3, 1)},
              {24, 10, 8, 4});
  const ModelFiles model = parse(file);
  ASSERT_EQ(model.tensors.size(), 4u);
  EXPECT_EQ(model.get("a").dtype, DType::kF32);
  EXPECT_THAT(model.get("a").shape, ElementsAre(2, 3));
  EXPECT_EQ(bytes_of(file, model.get("a")), std::string(24, 'a'));
  EXPECT_EQ(model.get("b").dtype, DType::kF16);
  EXPECT_EQ(bytes_of(file, model.get("b")), std::string(10, 'b'));
  EXPECT_EQ(model.get("c").dtype, DType::kBF16);
  EXPECT_EQ(bytes_of(file, model.get("c")), std::string(8, 'c'));
  EXPECT_EQ(model.get("scalar").elements(), 1);
  EXPECT_EQ(bytes_of(file, model.get("scalar")), "dddd");
  for (const TensorInfo& info : model.tensors) EXPECT_EQ(info.extent.offset % 64, 0u);
}

TEST(TorchReaderTest, ListsTensorsOfOtherTypes) {
  std::vector<TestTensor> tensors;
  const std::pair<const char*, const char*> types[] = {
      {"DoubleStorage", "F64"}, {"LongStorage", "I64"}, {"IntStorage", "I32"},
      {"ShortStorage", "I16"},  {"CharStorage", "I8"},  {"ByteStorage", "U8"},
      {"BoolStorage", "BOOL"},
  };
  for (const auto& [torch_name, type] : types)
    tensors.push_back(with_strides(of_type(tensor(type, {2, 3}), torch_name), {1, 2}));
  tensors.push_back(tensor("empty", {0, 7}, 1, 0));
  const ModelFiles model = parse(file_of(tensors, {128, 0}));
  EXPECT_TRUE(model.tensors.empty());
  for (const auto& [torch_name, type] : types) {
    EXPECT_THAT(error_of([&] { model.get(type); }),
                HasSubstr(fmt::format("tensor '{0}' has type {0}", type)));
  }
  EXPECT_THAT(error_of([&] { model.get("empty"); }), HasSubstr("F32 without elements"));
  EXPECT_THAT(error_of_file(file_of(of_type(tensor("x", {17}), "BoolStorage"))),
              HasSubstr("ends past the 16 elements of its storage"));
}

TEST(TorchReaderTest, ViewsAreParts) {
  const std::string file = file_of({tensor("first", {2, 4}), at_offset(tensor("second", {4, 2}), 8),
                                    with_strides(tensor("one row", {1, 4}, 1, 4), {77, 1}),
                                    with_strides(tensor("one", {1, 1}, 2, 1), {9, 9})},
                                   {64, 16, 4});
  const ModelFiles model = parse(file);
  EXPECT_EQ(model.get("second").extent.offset, model.get("first").extent.offset + 32);
  EXPECT_THAT(model.get("one row").shape, ElementsAre(1, 4));
  for (const auto& strides : {std::vector<int64_t>{1, 2}, {0, 1}, {4, 1}, {4, 2}}) {
    EXPECT_THAT(error_of_file(file_of(with_strides(tensor("t", {2, 3}), strides))),
                AllOf(HasSubstr("tensor 't': its elements are not stored in the order"),
                      HasSubstr("convert the folder to safetensors")));
  }
}

// Heads that are tied to the embedding are the same elements; the reader of a model takes the name
// that its configuration asks for.
TEST(TorchReaderTest, TiedWeightsHaveTheSameExtent) {
  const ModelFiles model =
      parse(file_of({tensor("embedding", {4, 4}), tensor("head", {4, 4})}, {64}));
  EXPECT_EQ(model.get("embedding").extent.offset, model.get("head").extent.offset);
  EXPECT_EQ(model.get("head").name, "head");
  for (const TestTensor& other :
       {tensor("other", {2, 8}), tensor("other", {4, 3}), at_offset(tensor("other", {3, 4}), 4),
        of_type(tensor("other", {4, 4}), "HalfStorage")}) {
    EXPECT_THAT(error_of_file(file_of({tensor("t", {4, 4}), other}, {64})), HasSubstr("overlap"));
  }
  EXPECT_THAT(error_of_file(file_of({tensor("t", {4}), tensor("t", {4})}, {64})),
              HasSubstr("tensor 't' is there twice"));
}

TEST(TorchReaderTest, TensorsMustFitTheirStorage) {
  const std::pair<TestTensor, const char*> cases[] = {
      {tensor("t", {17}), "tensor 't': it ends past the 16 elements of its storage"},
      {at_offset(tensor("t", {4}), 13), "ends past the 16 elements"},
      {at_offset(tensor("t", {4}), int64_t{1} << 54), "ends past the 16 elements"},
      {tensor("t", {17}, 0, 17), "storage of 17 elements of F32 does not fit the 64 bytes of"},
      {tensor("t", {4}, 0, int64_t{1} << 54), "does not fit the 64 bytes"},
      {tensor("t", {4}, 1), "its storage '1' is not in the archive"},
      {with_strides(tensor("t", {2, 2}), {int64_t{1} << 54, 1}), "ends past the 16 elements"},
      {with_strides(tensor("t", {int64_t{1} << 54, int64_t{1} << 54}), {1 << 20, 1 << 20}),
       "ends past the 16 elements"},
      {with_strides(tensor("t", {int64_t{1} << 40}), {0}), "expected 1 to 2147483647"},
      {tensor("", {4}), "has a name of 0 bytes"},
      {tensor(std::string(1025, 'x'), {4}), "has a name of 1025 bytes"},
  };
  for (const auto& [written, message] : cases)
    EXPECT_THAT(error_of_file(file_of(written)), HasSubstr(message)) << message;
  EXPECT_THAT(error_of_file(file_of(tensor("t", {1, 1, 1, 1, 1, 1, 1, 1, 1}))),
              HasSubstr("a tuple of 9 values"));
  const std::string name = "t\n\x1b";
  EXPECT_THAT(error_of_file(file_of(tensor(name, {17}))), HasSubstr(R"(tensor 't\n\x1b': )"));
}

TEST(TorchReaderTest, SaysWhatToDoAboutOtherFiles) {
  EXPECT_THAT(error_of_file(""), HasSubstr("does not begin as a zip archive"));
  EXPECT_THAT(error_of_file("version https://git-lfs"), HasSubstr("not begin as a zip archive"));
  const std::string legacy = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M";
  EXPECT_THAT(error_of_file(legacy), AllOf(HasSubstr("before 1.6"), HasSubstr("torch.save()")));
  const std::string pickle = TestPickle().state_dict(std::vector{tensor("t", {4})}).text;
  const std::string storage(64, 's');
  const auto archive = [&](std::vector<std::pair<std::string, std::string>> members) {
    TestZip zip;
    for (const auto& [name, content] : members) zip.add(name, content);
    return error_of_file(zip.bytes());
  };
  EXPECT_EQ(archive({{"a/data.pkl", pickle}, {"a/data/0", storage}}), "no error");
  EXPECT_THAT(archive({{"data.pkl", pickle}}), HasSubstr("the archive has no data.pkl"));
  EXPECT_THAT(archive({{"a/b/data.pkl", pickle}}), HasSubstr("the archive has no data.pkl"));
  EXPECT_THAT(archive({{"a/data.pkl", pickle}, {"b/data.pkl", pickle}}),
              HasSubstr("data.pkl is in two folders"));
  EXPECT_THAT(archive({{"a/data.pkl", pickle}, {"b/data/0", storage}}),
              HasSubstr("its storage '0' is not in the archive"));
  EXPECT_THAT(archive({{"a/data.pkl", pickle}, {"a/data/0", storage}, {"a/byteorder", "big"}}),
              HasSubstr("its byte order is 'big'"));
  EXPECT_THAT(archive({{"a/data.pkl", pickle}, {"a/byteorder", std::string(17, 'x')}}),
              HasSubstr("member 'a/byteorder' has 17 bytes, over 16"));
  EXPECT_THAT(archive({{"a/data.pkl", "cposix\nsystem\n"}}),
              HasSubstr("no pickle that begins with its protocol"));
  EXPECT_THAT(error_of_file(test_torch_file(pickle, std::vector{storage}, {.method = 8})),
              HasSubstr("it is compressed (method 8)"));
}

TEST(TorchReaderTest, ReadsUnalignedAndLargeArchives) {
  const std::string pickle = TestPickle().state_dict(std::vector{tensor("t", {16})}).text;
  for (const TestMember& member :
       {TestMember{.alignment = 1}, TestMember{.zip64 = true, .alignment = 7}}) {
    const std::string file = test_torch_file(pickle, std::vector{std::string(64, 's')}, member);
    EXPECT_EQ(bytes_of(file, parse(file).get("t")), std::string(64, 's'));
  }
}

class TorchFolderTest : public ::testing::Test {
 protected:
  TorchFolderTest() { folder_.write("config.json", kConfig); }
  std::string error() {
    return error_of([&] { open_model(folder_.path()); });
  }
  void write_safetensors(std::string_view file) const {
    SafetensorsWriter writer;
    writer.add_tensor("safe", "F32", std::vector<int64_t>{1}, std::vector<std::byte>(4));
    writer.write(folder_ / file);
  }
  TempFolder folder_;
};

TEST_F(TorchFolderTest, ReadsASingleFile) {
  folder_.write("pytorch_model.bin", file_of(tensor("t", {16})));
  const ModelFiles model = open_model(folder_.path());
  EXPECT_EQ(model.format, ModelFiles::Format::kHuggingFace);
  const TensorInfo& info = model.get("t");
  std::vector<std::byte> data(info.extent.bytes);
  File(model.paths.at(0)).read_exact(info.extent.offset, data);
  EXPECT_THAT(data, ::testing::Each(std::byte{'a'}));
  folder_.write("pytorch_model.bin", "");
  EXPECT_THAT(error(), HasSubstr("pytorch_model.bin: no file of torch.save()"));
  EXPECT_THAT(error_of([&] { open_model(folder_ / "pytorch_model.bin"); }),
              HasSubstr("give the folder"));
}

TEST_F(TorchFolderTest, ReadsShards) {
  const auto index = [&](std::string_view weight_map) {
    folder_.write("pytorch_model.bin.index.json",
                  fmt::format(R"({{"weight_map": {}}})", weight_map));
  };
  folder_.write("1.bin", file_of({tensor("a", {4}), tensor("tied", {4})}, {64}));
  folder_.write("2.bin", file_of(tensor("b", {4})));
  index(R"({"a": "1.bin", "b": "2.bin", "tied": "1.bin"})");
  const ModelFiles model = open_model(folder_.path());
  EXPECT_EQ(model.paths.size(), 2u);
  EXPECT_EQ(model.get("b").extent.file, 1);
  EXPECT_EQ(model.get("tied").extent.file, 0);
  index(R"({"a": "1.bin", "c": "2.bin"})");
  EXPECT_THAT(error(), HasSubstr("pytorch_model.bin.index.json: tensor 'c' is not in 2.bin"));
  index(R"({"a": "3.bin"})");
  EXPECT_THAT(error(), HasSubstr("shard 3.bin of pytorch_model.bin.index.json is missing"));
  index(R"({"a": "1.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("expected the bare name of a .bin file"));
  index(R"({"a": "../1.bin"})");
  EXPECT_THAT(error(), HasSubstr("expected the bare name of a .bin file"));
}

TEST_F(TorchFolderTest, SafetensorsComeFirst) {
  folder_.write("pytorch_model.bin", "never read");
  write_safetensors("model.safetensors");
  EXPECT_NE(open_model(folder_.path()).find("safe"), nullptr);
  std::filesystem::rename(folder_ / "model.safetensors", folder_ / "1.safetensors");
  folder_.write("model.safetensors.index.json", R"({"weight_map": {"safe": "1.safetensors"}})");
  EXPECT_NE(open_model(folder_.path()).find("safe"), nullptr);
}

}  // namespace
}  // namespace spillway
