// SPDX-License-Identifier: Apache-2.0
// StepBatch::graph_key is the graph key: a device that replays a recorded step for another one with
// the same key finds everything where it was, and KV where the step's batch says.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "cpu/cpu_device.h"
#include "cpu/cpu_ops.h"
#include "storage/test_folder.h"
#include "tests/generation/tiny_models.h"

namespace spillway {
namespace {

using testing_models::tiny_model;
using testing_models::tiny_prompt;
using testing_models::TinyRuntime;

// Computes as CpuOps does, and remembers what the ops of the last step were called with.
class WatchedOps final : public CpuOps {
 public:
  using CpuOps::CpuOps;

  void run_step(const StepBatch& batch, std::span<const StepPart> parts) override {
    addresses.clear();
    graph_key = batch.graph_key;
    kv_of_step = batch.kv;
    ++steps;
    CpuOps::run_step(batch, parts);
  }
  void embed(const WeightView& table, std::span<const int32_t> ids, const Activations& out,
             LinearMode mode) override {
    add({table.data, out.data});
    CpuOps::embed(table, ids, out, mode);
  }
  void norm(NormKind kind, const Activations& x, const WeightView& weight, const WeightView& bias,
            float eps, const Activations& out) override {
    add({x.data, weight.data, bias.data, out.data});
    CpuOps::norm(kind, x, weight, bias, eps, out);
  }
  void linear(const WeightView& w, const WeightView& bias, const Activations& x,
              const Activations& out, LinearMode mode) override {
    add({w.data, bias.data, x.data, out.data});
    CpuOps::linear(w, bias, x, out, mode);
  }
  void rope_angles(std::span<const int32_t> positions, std::span<const float> frequencies,
                   float scale, const Activations& out) override {
    add({out.data});
    CpuOps::rope_angles(positions, frequencies, scale, out);
  }
  void attention(const Activations& q, const KvLayerView& kv, std::span<const SequenceSpan> spans,
                 const AttentionParams& params, const Activations& out) override {
    add({q.data, out.data});
    if (graph_key != 0) {
      const KvPlanes& said = kv_of_step[static_cast<size_t>(kv.layer)];
      EXPECT_TRUE(said.k == kv.k && said.v == kv.v) << "layer " << kv.layer;
    }
    top_k = params.top_k;
    CpuOps::attention(q, kv, spans, params, out);
  }
  void gather_rows(const Activations& x, std::span<const int32_t> rows,
                   const Activations& out) override {
    add({x.data, out.data});
    CpuOps::gather_rows(x, rows, out);
  }

  uint64_t graph_key = 0;
  std::span<const KvPlanes> kv_of_step;
  int steps = 0;
  float top_k = 0;
  std::vector<const std::byte*> addresses;

 private:
  void add(std::initializer_list<const std::byte*> more) {
    addresses.insert(addresses.end(), more);
  }
};

// The host's device, with these ops.
class WatchedDevice final : public Device {
 public:
  const DeviceInfo& info() const override { return host_.info(); }
  Buffer allocate(size_t bytes, MemoryTag tag) override { return host_.allocate(bytes, tag); }
  Usage usage() const override { return host_.usage(); }
  WatchedOps& ops() override { return ops_; }
  void synchronize() override {}

 private:
  void release(std::byte*, size_t, MemoryTag) noexcept override {}  // the host's own

  CpuDevice host_{CpuDeviceOptions{.threads = 1}};
  WatchedOps ops_{host_, host_.pool()};
};

class GraphKeyTest : public testing::Test {
 protected:
  static constexpr int kMostTokens = 24;

  WatchedOps& ops() { return static_cast<WatchedDevice&>(runtime_.device).ops(); }
  // Runs one step at the beginning of a sequence, and returns its graph key.
  uint64_t step(Decoder& decoder, KvCache& kv, int tokens, int logit_rows) {
    const auto ids = tiny_prompt(tokens, 1);
    const std::vector<BlockId> table = block_range(0, 2);
    const StepSequence sequence{ids, 0, table, logit_rows};
    decoder.step(kv, {&sequence, 1});
    return ops().graph_key;
  }

  TinyRuntime runtime_{std::make_unique<WatchedDevice>(), "llama", DType::kF32};
};

TEST_F(GraphKeyTest, StaysAsLongAsNothingMoves) {
  KvCache kv = runtime_.make_kv(2), other = runtime_.make_kv(2);
  Decoder decoder = runtime_.make_decoder(kMostTokens);
  const uint64_t graph_key = step(decoder, kv, 1, 1);
  EXPECT_NE(graph_key, 0u);
  EXPECT_EQ(step(decoder, kv, 1, 1), graph_key);
  EXPECT_EQ(step(decoder, kv, 3, 1), graph_key) << "the shape is not part of it";
  EXPECT_EQ(step(decoder, other, 1, 1), graph_key) << "where KV lies is not part of it";
  KvCache smaller = runtime_.make_kv(2, KvType::kF16);
  const uint64_t there = step(decoder, smaller, 1, 1);
  EXPECT_NE(there, graph_key) << "how it lies there is";
  EXPECT_EQ(step(decoder, kv, 1, 1), graph_key) << "what was recorded there is of use again";
  EXPECT_EQ(step(decoder, smaller, 1, 1), there);
}

TEST_F(GraphKeyTest, IsAnotherWhenMemoryIsAnother) {
  KvCache kv = runtime_.make_kv(2);
  std::optional<Decoder> decoder(runtime_.make_decoder(kMostTokens));
  std::vector<uint64_t> seen = {0, step(*decoder, kv, 1, 1)};
  const auto expect_new = [&](uint64_t graph_key, const char* why) {
    EXPECT_EQ(std::count(seen.begin(), seen.end(), graph_key), 0) << why;
    seen.push_back(graph_key);
  };
  expect_new(step(*decoder, kv, 9, 9), "more logits than before");
  decoder->set_attention_topk(0.5F);
  expect_new(step(*decoder, kv, 1, 1), "another argument of an op");
  runtime_.weights = load_weights(runtime_.device, runtime_.model, {}, {});
  expect_new(step(*decoder, kv, 1, 1), "other weights");
  decoder.emplace(runtime_.make_decoder(kMostTokens));
  expect_new(step(*decoder, kv, 1, 1), "another decoder");
}

// A device's step begins with an upload and a wait. There is one such step for each micro-batch in
// each layer, whatever is loaded ahead in between.
TEST_F(GraphKeyTest, LoadsAheadAreNoStepsOfTheirOwn) {
  TempFolder folder;
  IoQueue queue;
  KvCache kv = runtime_.make_kv(2);
  Decoder decoder(runtime_.device, runtime_.model.spec, runtime_.weights,
                  DecoderOptions{.max_tokens = 12,
                                 .micro_tokens = 4,
                                 .activations = {0, 0, 1},
                                 .queue = &queue,
                                 .disk_dir = folder.path()});
  step(decoder, kv, 12, 1);
  // The last batch's logits are gathered with its last layer.
  const int batches = 3, head = 1;
  EXPECT_EQ(ops().steps, batches * (1 + runtime_.model.spec.layer_count()) + head);
}

// Whatever happens to a decoder and its caches, the ops of steps with equal keys and shapes are
// called with the same addresses, and with KV where the batch says.
TEST_F(GraphKeyTest, EqualNumbersAreEqualAddresses) {
  using Key = std::tuple<uint64_t, int, int>;
  std::map<Key, std::pair<std::vector<const std::byte*>, float>> known;
  std::mt19937 random(3);
  const auto pick = [&](int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(random);
  };
  std::vector<KvCache> caches;
  for (int i = 0; i < 3; ++i) caches.push_back(runtime_.make_kv(2 + i));
  std::optional<Decoder> decoder(runtime_.make_decoder(kMostTokens));
  int again = 0;
  for (int i = 0; i < 400; ++i) {
    switch (pick(20)) {
      case 0:
        caches[static_cast<size_t>(pick(3))] = runtime_.make_kv(2 + pick(3));
        break;
      case 1:
        std::swap(caches[0], caches[2]);
        break;
      case 2:
        decoder.emplace(runtime_.make_decoder(kMostTokens));
        break;
      case 3:
        runtime_.weights = load_weights(runtime_.device, runtime_.model, {}, {});
        break;
      case 4:
        decoder->set_attention_topk(pick(2) == 0 ? 0 : 0.5F);
        break;
      default:
        break;
    }
    const int tokens = 1 + pick(3), logits = std::min(tokens, 1 + pick(3));
    const uint64_t graph_key = step(*decoder, caches[static_cast<size_t>(pick(3))], tokens, logits);
    ASSERT_NE(graph_key, 0u);
    const auto [it, is_new] =
        known.try_emplace({graph_key, tokens, logits}, ops().addresses, ops().top_k);
    again += is_new ? 0 : 1;
    ASSERT_EQ(it->second.first, ops().addresses) << "step " << i;
    ASSERT_EQ(it->second.second, ops().top_k) << "step " << i;
  }
  EXPECT_GT(again, 50);
}

TEST_F(GraphKeyTest, WhatIsNotOpsAloneHasNone) {
  KvCache kv = runtime_.make_kv(2);
  Decoder watched = runtime_.make_decoder(kMostTokens);
  watched.observe_attention([](const auto&, const auto&, auto, const auto&) {});
  EXPECT_EQ(step(watched, kv, 1, 1), 0u);
  Decoder cut(runtime_.device, runtime_.model.spec, runtime_.weights,
              DecoderOptions{.max_tokens = kMostTokens, .micro_tokens = 2});
  EXPECT_EQ(step(cut, kv, 3, 1), 0u) << "several micro-batches";
  EXPECT_NE(step(cut, kv, 2, 1), 0u) << "one";
}

}  // namespace
}  // namespace spillway
