// SPDX-License-Identifier: Apache-2.0
// Weights in memory are the same whether they are mapped or read past the page cache, from one file
// or several.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/test_model.h"
#include "runtime/test_weight_view.h"
#include "storage/gguf_writer.h"
#include "tensor/random_fill.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

class WeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("spillway-weights-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    path_ = folder_ / "tiny.gguf";
    write_model();
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Writes a Llama of one layer whose tensors begin at odd multiples of 32 bytes, of many types or
  // of one.
  void write_model(std::optional<DType> only = std::nullopt) {
    GgufWriter writer;
    writer.add("general.architecture", "llama");
    for (const auto& [key, value] :
         std::initializer_list<std::pair<const char*, uint32_t>>{{"llama.block_count", 1},
                                                                 {"llama.embedding_length", 256},
                                                                 {"llama.feed_forward_length", 256},
                                                                 {"llama.attention.head_count", 4},
                                                                 {"llama.context_length", 64}}) {
      writer.add_u32(key, value);
    }
    const auto add = [&](const char* name, std::vector<int64_t> shape, DType dtype) {
      if (shape.size() == 2) dtype = only.value_or(dtype);
      int64_t count = 1;
      for (const int64_t n : shape) count *= n;
      std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(dtype, count)));
      fill_random(dtype, bytes.data(), count, 7, 0.1F);
      writer.add_tensor(name, dtype, shape, bytes);
    };
    add("token_embd.weight", {50, 256}, DType::kQ6_K);
    add("output_norm.weight", {256}, DType::kF32);
    add("blk.0.attn_norm.weight", {256}, DType::kF32);
    add("blk.0.ffn_norm.weight", {256}, DType::kF32);
    add("blk.0.attn_q.weight", {256, 256}, DType::kQ4_K);
    add("blk.0.attn_k.weight", {256, 256}, DType::kQ3_K);
    add("blk.0.attn_v.weight", {256, 256}, DType::kQ5_1);
    add("blk.0.attn_output.weight", {256, 256}, DType::kBF16);
    add("blk.0.ffn_gate.weight", {256, 256}, DType::kQ4_0);
    add("blk.0.ffn_up.weight", {256, 256}, DType::kQ8_0);
    add("blk.0.ffn_down.weight", {256, 256}, DType::kQ2_K);
    writer.write(path_);
  }

  static std::vector<std::byte> bytes_of(const WeightView& view) {
    return {view.data, view.data + view.bytes()};
  }

  fs::path folder_, path_;
  CpuDevice device_{CpuDeviceOptions{2}};
};

TEST_F(WeightsTest, AreTheSameMappedAndReadDirectly) {
  uint64_t reported = 0, total = 0;
  WeightLoadOptions options;
  options.progress = [&](uint64_t done, uint64_t all) {
    EXPECT_GE(done, reported);
    reported = done;
    total = all;
  };
  const auto mapped = load_model(device_, path_, options);
  EXPECT_EQ(reported, total);
  EXPECT_EQ(total, static_cast<uint64_t>(mapped->model.weight_bytes()));
  const auto weight_bytes = [&] {
    return device_.usage().bytes[static_cast<size_t>(MemoryTag::kWeights)];
  };
  // If any matrix is wanted in another layout, all weights are in the arena.
  const auto a = [&](const char* name, int layer = 0) {
    return view_of(mapped->weights, mapped->model, name, layer);
  };
  const bool packs = a("query").layout == WeightLayout::kGroups16;
  const uint64_t copied = weight_bytes();
  EXPECT_GE(copied, packs ? total : 0);
  EXPECT_LT(copied, (packs ? total : 0) + 16 * 64);

  reported = 0;
  options.access = WeightAccess::kDirect;
  const auto direct = load_model(device_, path_, options);
  EXPECT_EQ(reported, total);
  const uint64_t held = weight_bytes() - copied;
  EXPECT_GE(held, total);
  EXPECT_LT(held, total + 16 * 64);

  const auto b = [&](const char* name, int layer = 0) {
    return view_of(direct->weights, direct->model, name, layer);
  };
  EXPECT_EQ(a("query").layout, b("query").layout);
  for (const char* name : {"query", "value", "mlp_down"})
    EXPECT_EQ(bytes_of(a(name)), bytes_of(b(name)));
  EXPECT_EQ(bytes_of(a("token_embedding", -1)), bytes_of(b("token_embedding", -1)));
  const ListWeights& head = mapped->weights.head;  // tied: one copy
  EXPECT_EQ(head.ops.back().front().weight.data, a("token_embedding", -1).data);
}

TEST_F(WeightsTest, UnchangedWeightsAreThePageCachesOwn) {
  write_model(DType::kBF16);
  uint64_t reported = 0, total = 0;
  WeightLoadOptions options;
  options.progress = [&](uint64_t done, uint64_t all) {
    EXPECT_GE(done, reported);
    reported = done;
    total = all;
  };
  const auto mapped = load_model(device_, path_, options);
  EXPECT_EQ(reported, total);
  EXPECT_EQ(total, static_cast<uint64_t>(mapped->model.weight_bytes()));
  EXPECT_EQ(device_.usage().bytes[static_cast<size_t>(MemoryTag::kWeights)], 0U);
  options.access = WeightAccess::kDirect;
  reported = 0;
  const auto direct = load_model(device_, path_, options);
  for (const char* name : {"query", "mlp_norm"}) {
    EXPECT_EQ(bytes_of(view_of(mapped->weights, mapped->model, name, 0)),
              bytes_of(view_of(direct->weights, direct->model, name, 0)));
  }
}

TEST_F(WeightsTest, StopLoadingWhenCancelled) {
  const std::atomic<bool> cancel{true};
  for (const bool plain : {false, true}) {
    if (plain) write_model(DType::kF16);
    for (const WeightAccess access : {WeightAccess::kMapped, WeightAccess::kDirect}) {
      WeightLoadOptions options;
      options.access = access;
      options.cancel = &cancel;
      try {
        load_model(device_, path_, options);
        FAIL();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCancelled);
      }
    }
  }
  EXPECT_EQ(device_.usage().bytes[static_cast<size_t>(MemoryTag::kWeights)], 0U);
}

TEST_F(WeightsTest, DummyModelsNeedNoFile) {
  const auto dummy = load_model(device_, "dummy:opt-125m:q4_0", {});
  EXPECT_EQ(dummy->weights.layers.size(), 12U);
  EXPECT_EQ(view_of(dummy->weights, dummy->model, "mlp_up", 3).dtype, DType::kQ4_0);
  EXPECT_THROW(dummy->require_tokenizer(), Error);
  EXPECT_THROW(load_model(device_, "dummy:bloom-176b", {}), Error);  // a shape for planning only
}

}  // namespace
}  // namespace spillway
