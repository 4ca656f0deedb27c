// SPDX-License-Identifier: Apache-2.0
#include "runtime/weight_mover.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/weight_homes.h"
#include "runtime/device_traits.h"
#include "runtime/test_weight_file.h"
#include "storage/test_folder.h"
#include "tensor/packed_layout.h"
#include "tests/generation/tiny_models.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

struct Placed {
  const char* name;
  bool has_accelerator;
  WeightPlan plan;
};
std::vector<Placed> all_placed() {
  return {{"device", true, {}},
          {"host", true, {.shares = {0, 1, 0}, .embeddings = Tier::kHost}},
          {"disk", true, {.shares = {0, 0, 1}}},
          {"everywhere", true, {.shares = {0.3, 0.3, 0.4}, .embeddings = Tier::kHost}},
          {"host_alone", false, {}},
          {"host_alone_and_disk", false, {.shares = {0.5, 0, 0.5}}}};
}

class WeightMoverTest : public testing::TestWithParam<Placed> {
 protected:
  WeightPlacement placement(const Model& model, const WeightPlan& plan) {
    return {.homes = weight_homes(machine_.device().host_visible(), model, plan),
            .host = &machine_.host,
            .queue = &machine_.queue,
            .disk_dir = folder_.path()};
  }
  // Writes the model's weights to a file, and returns the model with its weights there.
  Model in_file(const Model& model) { return write_weights(machine_.host, model, file_); }
  ModelWeights load(const Model& model, const WeightPlacement& where, KeptWeights kept = {},
                    const WeightLoadOptions& options = {}) {
    std::vector<std::filesystem::path> paths;
    if (model.weights.front().extent) paths.push_back(file_);
    return load_weights(machine_.device(), model, paths, options, where, std::move(kept));
  }

  // The bytes of a weight, wherever it lives, in the layout that the device prefers.
  std::vector<std::byte> bytes_of(ModelWeights& weights, const BoundWeight& weight) {
    std::vector<std::byte> bytes(static_cast<size_t>(weight.bytes()));
    const WeightView& view = weights.view(weight.slot);
    const bool is_table = weight.slot.is_table() && !weights.on_host.by_token.empty();
    if (!view.empty()) {
      machine_.device().copy_to_host(bytes.data(), view.data, bytes.size());
    } else if (is_table) {
      const WeightView& table =
          weight.slot.by_position ? weights.on_host.by_position : weights.on_host.by_token;
      std::memcpy(bytes.data(), table.data, bytes.size());
    } else if (const StreamedWeight& streamed = weights.streamed_of(weight.slot);
               streamed.host != nullptr) {
      std::memcpy(bytes.data(), streamed.host, bytes.size());
    } else {
      std::ifstream in(weights.files.at(static_cast<size_t>(streamed.extent.file)),
                       std::ios::binary);
      in.seekg(static_cast<std::streamoff>(streamed.extent.offset));
      in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      EXPECT_TRUE(in.good());
    }
    return bytes;
  }
  std::vector<std::byte> expected_bytes(const BoundWeight& weight, const Model& model) {
    std::vector<std::byte> bytes(static_cast<size_t>(weight.bytes()));
    std::ifstream in(file_, std::ios::binary);
    in.seekg(static_cast<std::streamoff>(weight.extent->offset));
    in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (weight_layout(traits_of(machine_.device()), model, weight) == WeightLayout::kGroups16) {
      const std::vector<std::byte> rows = bytes;
      pack_groups(weight.dtype, rows.data(), bytes.data(), weight.slot.rows / kGroupRows,
                  weight.slot.cols);
    }
    return bytes;
  }
  void expect_bytes(ModelWeights& weights, const Model& stored) {
    for (const BoundWeight& weight : stored.weights) {
      EXPECT_EQ(bytes_of(weights, weight), expected_bytes(weight, stored))
          << weight.slot.name << " of list " << weight.slot.layer;
    }
  }

  TempFolder folder_;
  std::filesystem::path file_ = folder_.path() / "weights";
  TestMachine machine_{GetParam().has_accelerator};
};

TEST_P(WeightMoverTest, BytesAreTheFilesWhereverTheyGo) {
  for (const char* kind : {"llama", "opt", "llama-tied"}) {
    for (const DType type : {DType::kF16, DType::kQ8_0}) {
      const Model stored = in_file(testing_models::tiny_model(kind, type));
      for (const WeightAccess access : {WeightAccess::kMapped, WeightAccess::kDirect}) {
        WeightLoadOptions options;
        options.access = access;
        ModelWeights weights = load(stored, placement(stored, GetParam().plan), {}, options);
        expect_bytes(weights, stored);
      }
      // Random weights equal those that were written to the file.
      const Model random = testing_models::tiny_model(kind, type);
      ModelWeights weights = load(random, placement(random, GetParam().plan));
      expect_bytes(weights, stored);
      EXPECT_EQ(weights.counts().made, static_cast<int>(random.weights.size()));
    }
  }
}

// Moves weights from this placement to every other, without a file to read them from again.
TEST_P(WeightMoverTest, WhatIsKeptIsNotMadeAgain) {
  const Model stored = in_file(testing_models::tiny_model("opt", DType::kF16));
  const Model random = testing_models::tiny_model("opt", DType::kF16);
  for (const Placed& next : all_placed()) {
    if (next.has_accelerator != GetParam().has_accelerator) continue;
    SCOPED_TRACE(next.name);
    ModelWeights first = load(random, placement(random, GetParam().plan));
    const WeightPlacement where = placement(random, next.plan);
    KeptWeights kept =
        keep_weights(machine_.device(), random, std::move(first), where, ~uint64_t{0});
    ModelWeights second = load(random, where, std::move(kept));
    EXPECT_EQ(second.counts().kept, static_cast<int>(random.weights.size()));
    EXPECT_EQ(second.counts().made, 0);
    expect_bytes(second, stored);
  }
}

TEST_P(WeightMoverTest, WithoutRoomForThemNoneAreKeptInHostMemory) {
  const Model stored = in_file(testing_models::tiny_model("opt", DType::kF16));
  const Model random = testing_models::tiny_model("opt", DType::kF16);
  ModelWeights first = load(random, placement(random, {}));
  KeptWeights kept =
      keep_weights(machine_.device(), random, std::move(first), placement(random, {}), 0);
  for (size_t i = 0; i < random.weights.size(); ++i) EXPECT_FALSE(kept.has_memory(i)) << i;
  EXPECT_EQ(machine_.used(MemoryTag::kWeights), 0U);
  ModelWeights second = load(random, placement(random, {}), std::move(kept));
  EXPECT_EQ(second.counts().kept, 0);
  expect_bytes(second, stored);
}

TEST_P(WeightMoverTest, ADiskThatIsTooSmallIsRefused) {
  const Model random = testing_models::tiny_model("llama", DType::kF16);
  WeightPlacement where = placement(random, GetParam().plan);
  const uint64_t needed = bytes_by_home(random, where.homes)[static_cast<size_t>(Tier::kDisk)];
  where.disk_budget = needed;
  (void)load(random, where);
  if (needed == 0) return;
  where.disk_budget = needed - 1;
  try {
    (void)load(random, where);
    ADD_FAILURE() << "it was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(std::string(error.what()).find("--disk-memory"), std::string::npos) << error.what();
  }
  EXPECT_EQ(machine_.used(MemoryTag::kWeights), 0U);
}

TEST_P(WeightMoverTest, StopsWhenItIsCancelled) {
  const Model stored = in_file(testing_models::tiny_model("llama", DType::kQ8_0));
  const std::atomic<bool> cancel = true;
  WeightLoadOptions options;
  options.cancel = &cancel;
  try {
    (void)load(stored, placement(stored, GetParam().plan), {}, options);
    ADD_FAILURE() << "it was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
  EXPECT_EQ(machine_.used(MemoryTag::kWeights), 0U);
}

TEST_P(WeightMoverTest, ProgressEndsWithAllOfIt) {
  const Model stored = in_file(testing_models::tiny_model("llama", DType::kF16));
  uint64_t last = 0, total = 0;
  WeightLoadOptions options;
  options.progress = [&](uint64_t done, uint64_t of) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, of);
    last = done;
    total = of;
  };
  (void)load(stored, placement(stored, GetParam().plan), {}, options);
  EXPECT_EQ(last, total);
}

INSTANTIATE_TEST_SUITE_P(Placed, WeightMoverTest, testing::ValuesIn(all_placed()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(WeightMoverMemoryTest, ADeviceThatIsTooSmallIsRefusedAndLeftAsItWas) {
  TestMachine machine(/*has_accelerator=*/false);
  EmulatedAcceleratorOptions options;
  options.memory_bytes = 64 << 10;
  EmulatedAccelerator small(options);
  const Model model = testing_models::tiny_model("llama", DType::kF32);
  WeightPlacement where;
  where.host = &machine.host;
  try {
    (void)load_weights(small, model, {}, {}, where);
    ADD_FAILURE() << "it was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  }
  EXPECT_EQ(small.usage().total(), 0U);
  // The layers fit into host memory.
  where.homes =
      weight_homes(/*host_visible=*/false, model, {.shares = {0, 1, 0}, .embeddings = Tier::kHost});
  const ModelWeights weights = load_weights(small, model, {}, {}, where);
  EXPECT_FALSE(weights.streamed.empty());
}

}  // namespace
}  // namespace spillway
