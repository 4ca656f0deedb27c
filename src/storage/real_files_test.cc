// SPDX-License-Identifier: Apache-2.0
// Tests the readers on real models, if the shared data is available.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "storage/direct_reader.h"
#include "storage/file.h"
#include "storage/model_files.h"

namespace spillway {
namespace {

using ::testing::ElementsAre;

const std::filesystem::path kData = SPW_SHARED_DATA;

#define SPW_NEED(path) \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "needs " << (path)

std::vector<std::byte> bytes_of(const ModelFiles& model, std::string_view tensor) {
  const Extent& extent = model.get(tensor).extent;
  std::vector<std::byte> out(extent.bytes);
  File(model.paths[static_cast<size_t>(extent.file)]).read_exact(extent.offset, out);
  return out;
}

TEST(RealFilesTest, GgufOfStories260K) {
  const auto path = kData / "models/stories260K-f32.gguf";
  SPW_NEED(path);
  const ModelFiles model = open_model(path);
  EXPECT_EQ(model.metadata.get_string("general.architecture"), "llama");
  EXPECT_EQ(model.metadata.get_int("llama.block_count", 1, 1000), 5);
  EXPECT_EQ(model.metadata.get_string_array("tokenizer.ggml.tokens").size(), 512u);
  EXPECT_EQ(model.metadata.get_float_array("tokenizer.ggml.scores").size(), 512u);
  EXPECT_EQ(model.tensors.size(), 47u);
  EXPECT_THAT(model.get("blk.0.attn_k.weight").shape, ElementsAre(32, 64));
  EXPECT_EQ(model.get("token_embd.weight").dtype, DType::kF32);
}

TEST(RealFilesTest, QuantizedGgufOfStories15M) {
  const auto path = kData / "models/stories15M-Q8_0.gguf";
  SPW_NEED(path);
  const ModelFiles model = open_model(path);
  EXPECT_EQ(model.get("token_embd.weight").dtype, DType::kQ8_0);
  EXPECT_THAT(model.get("token_embd.weight").shape, ElementsAre(32000, 288));
  // The last tensor must end where the file does, up to padding.
  uint64_t end = 0;
  for (const TensorInfo& t : model.tensors) end = std::max(end, t.extent.offset + t.extent.bytes);
  EXPECT_LE(model.file_bytes[0] - end, 31u);
}

TEST(RealFilesTest, FolderAndGgufHoldTheSameEmbedding) {
  SPW_NEED(kData / "models/stories260K-hf");
  const ModelFiles hf = open_model(kData / "models/stories260K-hf");
  const ModelFiles gguf = open_model(kData / "models/stories260K-f32.gguf");
  EXPECT_EQ(hf.metadata.get_int("num_hidden_layers"), 5);
  EXPECT_TRUE(hf.metadata.get_bool("tie_word_embeddings"));
  EXPECT_EQ(hf.tensors.size(), 47u);
  EXPECT_EQ(bytes_of(hf, "model.embed_tokens.weight"), bytes_of(gguf, "token_embd.weight"));
  EXPECT_EQ(bytes_of(hf, "model.layers.3.mlp.up_proj.weight"),
            bytes_of(gguf, "blk.3.ffn_up.weight"));
}

TEST(RealFilesTest, VocabularyOnlyFiles) {
  SPW_NEED(kData / "tokenizer-vectors");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kData / "tokenizer-vectors")) {
    if (entry.path().extension() != ".gguf") continue;
    const ModelFiles model = open_tokenizer(entry.path());
    EXPECT_TRUE(model.tensors.empty());
    EXPECT_GT(model.metadata.get_string_array("tokenizer.ggml.tokens").size(), 30000u);
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST(RealFilesTest, DirectReaderReadsAWholeModel) {
  const auto path = kData / "models/stories15M-Q8_0.gguf";
  SPW_NEED(path);
  const ModelFiles model = open_model(path);
  const MappedFile map(path);
  const DirectReader reader(model.paths);
  for (const TensorInfo& t : model.tensors) {
    std::vector<std::byte> memory(DirectReader::buffer_bytes(t.extent.bytes) + kDirectAlignment);
    void* base = memory.data();
    size_t space = memory.size();
    const size_t needed = DirectReader::buffer_bytes(t.extent.bytes);
    auto* buffer = static_cast<std::byte*>(std::align(kDirectAlignment, needed, base, space));
    const auto read = reader.read(t.extent, {buffer, needed});
    EXPECT_TRUE(std::ranges::equal(read, map.bytes().subspan(t.extent.offset, t.extent.bytes)));
  }
}

}  // namespace
}  // namespace spillway
