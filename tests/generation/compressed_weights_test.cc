// SPDX-License-Identifier: Apache-2.0
// Plain weights are quantized to 4-bit groups while they are loaded.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/perplexity.h"
#include "engine/test_model.h"
#include "memory/stream_extents.h"
#include "runtime/test_weight_view.h"
#include "storage/gguf_writer.h"
#include "storage/test_folder.h"
#include "tensor/dequantize.h"
#include "tensor/packed_layout.h"
#include "tensor/quantize_g4.h"
#include "tensor/random_fill.h"
#include "tests/generation/tiny_models.h"

namespace spillway {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kHidden = 256, kFfn = 96, kVocab = 200;  // 96 is no whole number of groups

struct Options {
  DType type = DType::kF16;  // of the matrices
  DType key_type = DType::kF16;
  bool tied = true;
  bool dequantized = false;  // F32 weights with the values that their 4-bit groups would have
  float broken = 0;          // put into one weight if it is not 0
};

class ModelFile {
 public:
  ModelFile(const std::filesystem::path& path, const Options& options) : options_(options) {
    writer_.add("general.architecture", "llama");
    for (const auto& [key, value] :
         std::initializer_list<std::pair<const char*, int64_t>>{{"llama.block_count", 2},
                                                                {"llama.embedding_length", kHidden},
                                                                {"llama.feed_forward_length", kFfn},
                                                                {"llama.attention.head_count", 4},
                                                                {"llama.context_length", 64}}) {
      writer_.add_u32(key, static_cast<uint32_t>(value));
    }
    add("token_embd.weight", {kVocab, kHidden}, options.type, options.tied);
    if (!options.tied) add("output.weight", {kVocab, kHidden}, options.type);
    add("output_norm.weight", {kHidden}, DType::kF32);
    for (const std::string layer : {"blk.0.", "blk.1."}) {
      add(layer + "attn_norm.weight", {kHidden}, DType::kF32);
      add(layer + "ffn_norm.weight", {kHidden}, DType::kF32);
      add(layer + "attn_q.weight", {kHidden, kHidden}, options.type);
      add(layer + "attn_k.weight", {kHidden, kHidden}, options.key_type);
      add(layer + "attn_v.weight", {kHidden, kHidden}, options.type);
      add(layer + "attn_output.weight", {kHidden, kHidden}, options.type);
      add(layer + "ffn_gate.weight", {kFfn, kHidden}, options.type);
      add(layer + "ffn_up.weight", {kFfn, kHidden}, options.type);
      add(layer + "ffn_down.weight", {kHidden, kFfn}, options.type);
    }
    writer_.write(path);
  }

 private:
  void add(const std::string& name, const std::vector<int64_t>& shape, DType type,
           bool multiplied = true) {
    const int64_t cols = shape.back(), count = shape.size() == 1 ? cols : cols * shape[0];
    Bytes bytes(static_cast<size_t>(row_bytes(type, count)));
    fill_random(type, bytes.data(), count, ++seed_, shape.size() == 1 ? 0.5F : 0.06F);
    if (options_.broken != 0 && name == "blk.1.attn_v.weight") {
      quantize_reference(type, &options_.broken, bytes.data() + row_bytes(type, count - 3), 1);
    }
    if (options_.dequantized && shape.size() == 2 && !is_quantized(type)) {
      std::vector<float> values(static_cast<size_t>(count));
      dequantize_reference(type, bytes.data(), values.data(), count);
      if (multiplied && cols % 64 == 0) {
        Bytes groups(static_cast<size_t>(row_bytes(DType::kG4, count)));
        quantize_g4(values.data(), groups.data(), count);
        dequantize_reference(DType::kG4, groups.data(), values.data(), count);
      }
      bytes.resize(values.size() * 4);
      std::memcpy(bytes.data(), values.data(), bytes.size());
      type = DType::kF32;
    }
    writer_.add_tensor(name, type, shape, bytes);
  }

  Options options_;
  GgufWriter writer_;
  uint64_t seed_ = 0;
};

class CompressedWeightsTest : public testing::Test {
 protected:
  std::string file(const Options& options) {
    const auto path = folder_ / ("m" + std::to_string(++files_) + ".gguf");
    ModelFile(path, options);
    return path.string();
  }
  std::unique_ptr<LoadedModel> load(const std::string& path, bool compress,
                                    WeightAccess access = WeightAccess::kMapped) {
    WeightLoadOptions options;
    options.access = access;
    options.compress = compress;
    return load_model(device_, path, options);
  }
  std::vector<float> logits(const LoadedModel& loaded) {
    const auto ids = testing_models::tiny_prompt(40, 3, kVocab);
    KvCache kv = make_kv_cache(device_, loaded.model.spec, KvType::kF32, 64);
    Decoder decoder(device_, loaded.model.spec, loaded.weights, 16);
    std::vector<float> out;
    forward_all(decoder, kv, ids, 0, [&](int64_t, const Activations& rows) {
      for (int64_t i = 0; i < rows.rows; ++i)
        out.insert(out.end(), rows.f32(i), rows.f32(i) + rows.cols);
    });
    return out;
  }
  uint64_t bytes_of(MemoryTag tag) { return device_.usage().bytes[static_cast<size_t>(tag)]; }

  TempFolder folder_;
  int files_ = 0;
  CpuDevice device_{CpuDeviceOptions{2}};
};

double nmse(const std::vector<float>& actual, const std::vector<float>& expected) {
  double error = 0, power = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{actual[i]} - expected[i], 2);
    power += std::pow(double{expected[i]}, 2);
  }
  return error / power;
}

Bytes view_bytes(const WeightView& view) { return {view.data, view.data + view.bytes()}; }

TEST_F(CompressedWeightsTest, AreTheFilesWeightsQuantizedHoweverTheyAreRead) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::string path = file({.type = type, .key_type = type});
    const auto plain = load(path, false);
    const auto mapped = load(path, true), direct = load(path, true, WeightAccess::kDirect);
    for (int layer = 0; layer < 2; ++layer) {
      const auto view = [&](LoadedModel& of, const char* name) {
        return view_of(of.weights, of.model, name, layer);
      };
      for (const char* name : {"query", "key", "value", "attention_out", "mlp_gate", "mlp_up"}) {
        const WeightView from = view(*plain, name), to = view(*mapped, name);
        ASSERT_EQ(to.dtype, DType::kG4);
        Bytes expected(static_cast<size_t>(to.bytes()));
        EXPECT_TRUE(quantize_g4(type, from.data, expected.data(), from.rows * from.cols));
        if (to.layout == WeightLayout::kGroups16) {
          pack_groups(DType::kG4, expected.data(), expected.data(), to.rows / 16, to.cols);
        }
        EXPECT_EQ(view_bytes(to), expected);
        EXPECT_EQ(view_bytes(view(*direct, name)), expected);
      }
      // Rows of 96 columns are no whole groups, so this matrix stays as it is.
      EXPECT_EQ(view(*mapped, "mlp_down").dtype, type);
      for (const char* name : {"mlp_down", "attention_norm"})
        EXPECT_EQ(view_bytes(view(*mapped, name)), view_bytes(view(*plain, name)));
    }
    EXPECT_EQ(view_of(mapped->weights, mapped->model, "token_embedding").dtype,
              DType::kG4);  // tied, so it is multiplied
    EXPECT_EQ(mapped->model.main_dtype(), DType::kG4);
    EXPECT_EQ(logits(*mapped), logits(*direct));
  }
}

TEST_F(CompressedWeightsTest, LeaveAloneWhatIsQuantizedOrOnlyLookedUpIn) {
  const auto loaded = load(file({.key_type = DType::kQ5_0, .tied = false}), true);
  const auto type_of = [&](const char* name, int layer = -1) {
    return view_of(loaded->weights, loaded->model, name, layer).dtype;
  };
  EXPECT_EQ(type_of("token_embedding"), DType::kF16);
  EXPECT_EQ(type_of("head"), DType::kG4);
  EXPECT_EQ(type_of("key", 1), DType::kQ5_0);
  EXPECT_EQ(type_of("query", 1), DType::kG4);
  for (const float logit : logits(*loaded)) ASSERT_TRUE(std::isfinite(logit));
}

// The logits equal those of a network whose F32 weights were rounded to 4-bit groups, and are near
// those of the original network.
TEST_F(CompressedWeightsTest, GiveTheLogitsOfTheRoundedNetwork) {
  const auto exact = logits(*load(file({.dequantized = true}), false));
  const auto plain = logits(*load(file({}), false));
  const auto compressed = logits(*load(file({}), true));
  for (const float logit : compressed) ASSERT_TRUE(std::isfinite(logit));
  EXPECT_LE(nmse(compressed, exact), 2e-4);  // activations are rounded to 8 bits
  EXPECT_LE(nmse(compressed, plain), 0.1);   // random weights: the worst there is for 4 bits
  EXPECT_GE(nmse(compressed, plain), 1e-4);
}

TEST_F(CompressedWeightsTest, AreInMemoryOnceAndOnlyCompressed) {
  const std::string path = file({});
  uint64_t expected = 0;
  for (const WeightAccess access : {WeightAccess::kMapped, WeightAccess::kDirect}) {
    uint64_t reported = 0, total = 0;
    WeightLoadOptions options;
    options.access = access;
    options.compress = true;
    options.progress = [&](uint64_t done, uint64_t all) {
      EXPECT_GE(done, reported);
      reported = done;
      total = all;
    };
    CpuDevice device({2});
    const auto loaded = load_model(device, path, options);
    EXPECT_EQ(reported, total);
    expected = 0;
    uint64_t file_bytes = 0;
    for (const BoundWeight& weight : loaded->model.weights) {
      file_bytes += static_cast<uint64_t>(weight.file_bytes());
      expected += static_cast<uint64_t>(weight.bytes());
    }
    EXPECT_EQ(total, file_bytes);
    const auto usage = device.usage();
    const uint64_t held = usage.bytes[static_cast<size_t>(MemoryTag::kWeights)];
    EXPECT_GE(held, expected);
    EXPECT_LT(held, expected + 16 * 4096);
    EXPECT_EQ(usage.bytes[static_cast<size_t>(MemoryTag::kStaging)], 0U);
    // No more of the plain weights is in memory than a piece for each thread and some read ahead,
    // and this model's pieces are small.
    EXPECT_LE(usage.peak_bytes,
              held + (2 + kPiecesAhead + 1) * (uint64_t{kHidden} * kHidden * 2 + 2 * 4096));
  }
}

TEST_F(CompressedWeightsTest, RefuseNumbersThatGroupsCannotHold) {
  for (const float broken : {NAN, std::numeric_limits<float>::infinity(), 1e30F}) {
    const std::string path = file({.type = DType::kBF16, .broken = broken});
    EXPECT_NO_THROW(load(path, false));
    for (const WeightAccess access : {WeightAccess::kMapped, WeightAccess::kDirect}) {
      try {
        load(path, true, access);
        FAIL() << broken;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_NE(std::string(error.what()).find("NaN"), std::string::npos) << error.what();
      }
    }
  }
  EXPECT_EQ(bytes_of(MemoryTag::kWeights), 0U);
  EXPECT_EQ(bytes_of(MemoryTag::kStaging), 0U);
}

TEST_F(CompressedWeightsTest, DummyModelsAreMadeCompressed) {
  WeightLoadOptions options;
  options.compress = true;
  const auto compressed = load_model(device_, "dummy:smollm2-135m", options);
  EXPECT_EQ(view_of(compressed->weights, compressed->model, "mlp_up", 3).dtype, DType::kG4);
  EXPECT_EQ(view_of(compressed->weights, compressed->model, "mlp_norm", 3).dtype, DType::kF32);
  const auto named = load_model(device_, "dummy:smollm2-135m:g4", {});
  EXPECT_EQ(named->model.weight_bytes(), compressed->model.weight_bytes());
  EXPECT_EQ(view_bytes(view_of(named->weights, named->model, "mlp_up", 3)),
            view_bytes(view_of(compressed->weights, compressed->model, "mlp_up", 3)));
}

class StreamExtentsTest : public testing::TestWithParam<WeightAccess> {};

TEST_P(StreamExtentsTest, GivesEveryByteOnceInPiecesOfTheGrain) {
  const TempFolder folder;
  std::vector<std::filesystem::path> paths;
  std::vector<Bytes> contents;
  for (int f = 0; f < 2; ++f) {
    contents.emplace_back(100'000 + f);
    fill_random(DType::kF16, contents.back().data(), 50'000, static_cast<uint64_t>(f), 1);
    paths.push_back(folder / ("f" + std::to_string(f)));
    std::ofstream out(paths.back(), std::ios::binary);
    out.write(reinterpret_cast<const char*>(contents.back().data()),
              static_cast<std::streamsize>(contents.back().size()));
  }
  const std::vector<CutExtent> extents{{{0, 33, 60'000}, 96},        // an odd offset
                                       {{1, 4096, 50}, 100},         // less than a grain
                                       {{1, 5000, 90'001}, 20'000},  // a grain above a piece
                                       {{0, 99'999, 1}, 1}};
  CpuDevice device({2});
  WeightLoadOptions options;
  options.access = GetParam();
  uint64_t reported = 0;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 60'000U + 50 + 90'001 + 1);
    reported = done;
  };
  std::vector<Bytes> seen;
  for (const CutExtent& cut : extents) seen.emplace_back(cut.extent.bytes);
  std::atomic<uint64_t> taken{0};
  std::atomic<int> at_a_time{0};
  stream_extents(
      device, paths, extents, options,
      [&](size_t i, uint64_t offset, std::span<const std::byte> piece) {
        EXPECT_LE(++at_a_time, 2);  // at most the device's threads, however many reads run
        EXPECT_EQ(offset % extents[i].grain, 0U);
        EXPECT_LE(piece.size(), std::max<uint64_t>(10'000, extents[i].grain));
        EXPECT_LE(offset + piece.size(), seen[i].size());
        std::ranges::copy(piece, seen[i].begin() + static_cast<std::ptrdiff_t>(offset));
        taken += piece.size();
        --at_a_time;
      },
      10'000);
  EXPECT_EQ(taken, 60'000U + 50 + 90'001 + 1);
  EXPECT_EQ(reported, 60'000U + 50 + 90'001 + 1);
  for (size_t i = 0; i < extents.size(); ++i) {
    const Extent& e = extents[i].extent;
    const auto begin =
        contents[static_cast<size_t>(e.file)].begin() + static_cast<std::ptrdiff_t>(e.offset);
    EXPECT_EQ(seen[i], Bytes(begin, begin + static_cast<std::ptrdiff_t>(e.bytes))) << i;
  }
  EXPECT_EQ(device.usage().bytes[static_cast<size_t>(MemoryTag::kStaging)], 0U);
}

TEST_P(StreamExtentsTest, StopsWhenCancelledAndWhenTheTakerThrows) {
  const TempFolder folder;
  const std::vector<std::filesystem::path> paths{folder / "f"};
  std::ofstream(paths[0], std::ios::binary) << std::string(50'000, 'x');
  const std::vector<CutExtent> extents{{{0, 0, 50'000}, 1}};
  CpuDevice device({1});
  std::atomic<bool> cancel{false};
  WeightLoadOptions options;
  options.access = GetParam();
  options.cancel = &cancel;
  std::atomic<int> taken = 0;
  EXPECT_THROW(stream_extents(
                   device, paths, extents, options,
                   [&](size_t, uint64_t, std::span<const std::byte>) {
                     ++taken;
                     cancel = true;
                   },
                   1'000),
               Error);
  EXPECT_GE(taken, 1);
  EXPECT_LE(taken, 1 + kPiecesAhead);  // pieces that were already being read
  cancel = false;
  EXPECT_THROW(stream_extents(
                   device, paths, extents, options,
                   [](size_t, uint64_t, std::span<const std::byte>) { throw 7; }, 10'000),
               int);
  // This file is shorter than its header says.
  const std::vector<CutExtent> beyond{{{0, 40'000, 20'000}, 1}};
  EXPECT_THROW(stream_extents(device, paths, beyond, options,
                              [](size_t, uint64_t, std::span<const std::byte>) {}),
               Error);
}

INSTANTIATE_TEST_SUITE_P(Access, StreamExtentsTest,
                         testing::Values(WeightAccess::kMapped, WeightAccess::kDirect),
                         [](const auto& suite) {
                           return suite.param == WeightAccess::kMapped ? "Mapped" : "Direct";
                         });

}  // namespace
}  // namespace spillway
