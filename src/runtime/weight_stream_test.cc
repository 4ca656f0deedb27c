// SPDX-License-Identifier: Apache-2.0
#include "runtime/weight_stream.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/fault_points.h"
#include "storage/test_folder.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

// Where the weights of a layer are that do not live on the device.
enum class Homes { kHost, kNotPinned, kDisk, kBoth, kDiskWithoutAccelerator };
constexpr Homes kAllHomes[] = {Homes::kHost, Homes::kNotPinned, Homes::kDisk, Homes::kBoth,
                               Homes::kDiskWithoutAccelerator};
constexpr const char* kNames[] = {"host", "not_pinned", "disk", "both", "disk_without_accelerator"};

// The bytes of a weight, as many as one needs: random ones, from another place for each.
const std::byte* bytes_of(int layer, WeightRole role) {
  static const std::vector<uint32_t> random = [] {
    std::vector<uint32_t> words(size_t{1} << 20);
    std::mt19937 generator(7);
    for (uint32_t& word : words) word = static_cast<uint32_t>(generator());
    return words;
  }();
  return std::as_bytes(std::span(random)).data() + layer * 31 + static_cast<int>(role) * 57;
}

// Layers of two matrices that stream, the second of them in several reads, and a norm that does
// not. Layer 2 has nothing to stream.
class WeightStreamTest : public testing::TestWithParam<Homes> {
 protected:
  static constexpr int kLayers = 4, kOnDevice = 2;

  WeightStreamTest()
      : machine_(GetParam() != Homes::kDiskWithoutAccelerator,
                 GetParam() == Homes::kNotPinned ? 0 : ~uint64_t{0}) {
    weights_.layers.resize(kLayers);
    weights_.streamed.resize(kLayers);
    std::vector<std::byte> file(100);  // extents begin anywhere
    for (int layer = 0; layer < kLayers; ++layer) {
      weights_.layers[static_cast<size_t>(layer)].mlp_norm.weight = {DType::kF32, 1, 8, norms_};
      if (layer == kOnDevice) continue;
      add(layer, WeightRole::kQuery, 24, 40, is_on_disk(WeightRole::kQuery) ? &file : nullptr);
      add(layer, WeightRole::kDown, 700, 1201, is_on_disk(WeightRole::kDown) ? &file : nullptr);
    }
    weights_.files = {folder_.write("weights", file)};
  }
  void TearDown() override { disarm_faults(); }

  static bool is_on_disk(WeightRole role) {
    return GetParam() == Homes::kDisk || GetParam() == Homes::kDiskWithoutAccelerator ||
           (GetParam() == Homes::kBoth && role == WeightRole::kDown);
  }
  void add(int layer, WeightRole role, int64_t rows, int64_t cols, std::vector<std::byte>* file) {
    StreamedWeight weight{role, {DType::kF32, rows, cols, nullptr}};
    const auto bytes = static_cast<size_t>(weight.view.bytes());
    std::byte* to = nullptr;
    if (file != nullptr) {
      weight.extent = {0, file->size(), bytes};
      file->resize(file->size() + bytes + 52);
      to = file->data() + weight.extent.offset;
    } else {
      memory_.emplace_back(machine_.host, machine_.device(), bytes, MemoryTag::kWeights);
      weight.host = to = memory_.back().data();
      weight.pinned = memory_.back().is_pinned();
    }
    std::memcpy(to, bytes_of(layer, role), bytes);
    weights_.streamed[static_cast<size_t>(layer)].push_back(weight);
  }
  std::unique_ptr<WeightStream> make_stream(const WeightStreamOptions& options = {}) {
    return std::make_unique<WeightStream>(machine_.device(), machine_.host, machine_.queue,
                                          weights_, options);
  }

  // What ops that are called now would read.
  void expect_weights(int layer, const LayerWeights& got) {
    EXPECT_EQ(got.mlp_norm.weight.data, norms_) << "what lives on the device is where it lives";
    for (const auto& [role, view] : {std::pair(WeightRole::kQuery, &got.query.weight),
                                     std::pair(WeightRole::kDown, &got.down.weight)}) {
      ASSERT_FALSE(view->empty());
      EXPECT_EQ(std::memcmp(view->data, bytes_of(layer, role), static_cast<size_t>(view->bytes())),
                0)
          << "layer " << layer << ", role " << static_cast<int>(role);
    }
    EXPECT_EQ(got.query.weight.rows, 24);
    EXPECT_EQ(got.down.weight.cols, 1201);
  }
  void expect_step(WeightStream& stream) {
    for (int layer = 0; layer < kLayers; ++layer) {
      SCOPED_TRACE(layer);
      const LayerWeights& got = stream.acquire(layer, stalls_);
      if (layer != kOnDevice) expect_weights(layer, got);
      release(stream, layer);
    }
  }
  // As a step does that overlaps.
  static void release(WeightStream& stream, int layer) {
    stream.release(layer);
    if (layer != kOnDevice) stream.load_next();
  }
  uint64_t layer_bytes() const {
    uint64_t bytes = 0;
    for (const StreamedWeight& weight : weights_.streamed[0])
      bytes += static_cast<uint64_t>(weight.view.bytes());
    return bytes;
  }
  // Time for a thread to do what it should not.
  static void wait_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

  TempFolder folder_;
  TestMachine machine_;
  StallClock stalls_{machine_.device()};
  std::vector<PinnedBuffer> memory_;
  std::byte norms_[32] = {};
  WeightViews weights_;
};

TEST_P(WeightStreamTest, LayersComeRoundAndRound) {
  for (const auto& [slots, overlap, stages] :
       {std::tuple(1, true, 1), {2, true, 16}, {3, true, 2}, {7, true, 5}, {2, false, 3}}) {
    SCOPED_TRACE(testing::Message()
                 << slots << " slots, " << stages << " stages, overlap " << overlap);
    const auto stream = make_stream({.slots = slots, .overlap = overlap, .stages = stages});
    for (int step = 0; step < 3; ++step) expect_step(*stream);
    if (HasFailure()) return;
  }
}

TEST_P(WeightStreamTest, ALayerWithNothingToStreamIsTheModelsOwn) {
  const auto stream = make_stream();
  EXPECT_EQ(&stream->acquire(kOnDevice, stalls_), &weights_.layers[kOnDevice]);
  stream->release(kOnDevice);
  expect_step(*stream);
}

// As many layers as there are slots, and no more: the one that is in use stays.
TEST_P(WeightStreamTest, NothingIsOverwrittenBeforeItsRelease) {
  const auto stream = make_stream({.slots = 2});
  const LayerWeights& first = stream->acquire(0, stalls_);
  while (stream->layers_brought() < 2) std::this_thread::yield();
  wait_a_little();
  EXPECT_EQ(stream->layers_brought(), 2);
  expect_weights(0, first);
  stream->release(0);
  wait_a_little();
  EXPECT_EQ(stream->layers_brought(), 2) << "nobody has asked for another";
  stream->load_next();
  const LayerWeights& second = stream->acquire(1, stalls_);
  while (stream->layers_brought() < 3) std::this_thread::yield();
  expect_weights(1, second);
}

TEST_P(WeightStreamTest, ComesAheadOfTheCompute) {
  const auto stream = make_stream({.slots = 2});
  while (stream->layers_brought() < 2) std::this_thread::yield();
  expect_step(*stream);
}

TEST_P(WeightStreamTest, WithoutOverlapNothingComesUnasked) {
  const auto stream = make_stream({.slots = 3, .overlap = false});
  wait_a_little();
  EXPECT_EQ(stream->layers_brought(), 0);
  stream->acquire(0, stalls_);
  EXPECT_EQ(stream->layers_brought(), 1);
  stream->release(0);
  wait_a_little();
  EXPECT_EQ(stream->layers_brought(), 1);
  EXPECT_GT(stream->take_stats().load_s, 0);
}

TEST_P(WeightStreamTest, CountsWhatItMoves) {
  const auto stream = make_stream({.slots = 1, .overlap = false});
  expect_step(*stream);
  uint64_t host = 0, disk = 0;
  for (const auto& layer : weights_.streamed) {
    for (const StreamedWeight& weight : layer)
      (weight.host != nullptr ? host : disk) += static_cast<uint64_t>(weight.view.bytes());
  }
  const WeightStream::Stats stats = stream->take_stats();
  EXPECT_EQ(stats.host_bytes, host);
  EXPECT_EQ(stats.disk_bytes, disk);
}

// Steps that ended early: after a release, and between acquire() and release().
TEST_P(WeightStreamTest, ANewStepMayBeginAnywhere) {
  for (const bool overlap : {true, false}) {
    const auto stream = make_stream({.overlap = overlap});
    stream->acquire(0, stalls_);
    stream->release(0);
    expect_step(*stream);
    stream->acquire(0, stalls_);
    stream->release(0);
    stream->acquire(1, stalls_);
    expect_step(*stream);
    expect_weights(3, stream->acquire(3, stalls_));
    expect_step(*stream);
  }
}

TEST_P(WeightStreamTest, ItMayEndAtAnyTime) {
  for (int acquired = 0; acquired < 3; ++acquired) {
    const auto stream = make_stream();
    for (int layer = 0; layer < acquired; ++layer) {
      stream->acquire(layer, stalls_);
      if (layer + 1 < acquired) stream->release(layer);
    }
  }
  EXPECT_EQ(machine_.used(MemoryTag::kStaging), 0u);
}

TEST_P(WeightStreamTest, TakesItsSlotsAndStages) {
  const uint64_t slot = WeightStream::slot_bytes(weights_);
  EXPECT_GE(slot, layer_bytes());
  const WeightStreamOptions options{.slots = 3, .stages = 5};
  const uint64_t host_before = machine_.host.usage().total();
  const auto stream = make_stream(options);
  EXPECT_EQ(machine_.used(MemoryTag::kStaging), 3 * slot);
  if (machine_.accelerator && GetParam() != Homes::kNotPinned) {
    EXPECT_EQ(machine_.host.usage().total() - host_before,
              is_on_disk(WeightRole::kDown) ? 5 * kStreamStageBytes : 0);
  }
}

class WeightStreamFromDiskTest : public WeightStreamTest {};

// What failed ahead of time is tried again when it is asked for, and nobody hears of it.
TEST_P(WeightStreamFromDiskTest, AReadThatFailedBeforeItWasWantedIsRepeated) {
  for (const uint64_t nth : {1u, 2u, 4u}) {
    arm_fault("io.read", nth, FaultKind::kEio);
    const auto stream = make_stream();
    while (fault_hits("io.read") < nth) std::this_thread::yield();
    wait_a_little();
    EXPECT_NO_THROW(expect_step(*stream)) << nth;
    EXPECT_NO_THROW(expect_step(*stream)) << nth;
    disarm_faults();
  }
}

TEST_P(WeightStreamFromDiskTest, AReadThatFailsWhenItIsWantedIsAnErrorUntilItWorks) {
  const auto stream = make_stream();
  expect_step(*stream);
  arm_fault("io.read", 1, FaultKind::kEio, /*count=*/1'000'000);
  for (int i = 0; i < 3; ++i) {
    try {
      // Layers that have come already are good.
      for (int step = 0; step < 3; ++step) expect_step(*stream);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
    }
  }
  disarm_faults();
  expect_step(*stream);
}

std::string name_of(const testing::TestParamInfo<Homes>& test) {
  return kNames[static_cast<size_t>(test.param)];
}
INSTANTIATE_TEST_SUITE_P(Homes, WeightStreamTest, testing::ValuesIn(kAllHomes), name_of);
INSTANTIATE_TEST_SUITE_P(Homes, WeightStreamFromDiskTest,
                         testing::Values(Homes::kDisk, Homes::kBoth,
                                         Homes::kDiskWithoutAccelerator),
                         name_of);

}  // namespace
}  // namespace spillway
