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

// The tiers of streamed weights.
enum class Homes { kHost, kNotPinned, kDisk, kBoth, kDiskWithoutAccelerator };
constexpr Homes kAllHomes[] = {Homes::kHost, Homes::kNotPinned, Homes::kDisk, Homes::kBoth,
                               Homes::kDiskWithoutAccelerator};
constexpr const char* kNames[] = {"host", "not_pinned", "disk", "both", "disk_without_accelerator"};

// Returns random bytes for a weight, as many as needed, different for each weight.
const std::byte* bytes_of(int layer, int op) {
  static const std::vector<uint32_t> random = [] {
    std::vector<uint32_t> words(size_t{1} << 20);
    std::mt19937 generator(7);
    for (uint32_t& word : words) word = static_cast<uint32_t>(generator());
    return words;
  }();
  return std::as_bytes(std::span(random)).data() + layer * 31 + op * 570;
}

// Layers with two streamed matrices, of which the second takes several reads. Layer 2 has no
// streamed weights.
class WeightStreamTest : public testing::TestWithParam<Homes> {
 protected:
  static constexpr int kLayers = 4, kOnDevice = 2, kQuery = 0, kDown = 1;

  WeightStreamTest()
      : machine_(GetParam() != Homes::kDiskWithoutAccelerator,
                 GetParam() == Homes::kNotPinned ? 0 : ~uint64_t{0}) {
    weights_.layers.resize(kLayers);
    weights_.streamed.resize(kLayers);
    std::vector<std::byte> file(100);  // extents need not be aligned
    for (int layer = 0; layer < kLayers; ++layer) {
      if (layer == kOnDevice) continue;
      add(layer, kQuery, 24, 40, is_on_disk(kQuery) ? &file : nullptr);
      add(layer, kDown, 700, 1201, is_on_disk(kDown) ? &file : nullptr);
    }
    weights_.files = {folder_.write("weights", file)};
  }
  void TearDown() override { disarm_faults(); }

  static bool is_on_disk(int op) {
    return GetParam() == Homes::kDisk || GetParam() == Homes::kDiskWithoutAccelerator ||
           (GetParam() == Homes::kBoth && op == kDown);
  }
  void add(int layer, int op, int64_t rows, int64_t cols, std::vector<std::byte>* file) {
    StreamedWeight weight{op, 0, {DType::kF32, rows, cols, nullptr}};
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
    std::memcpy(to, bytes_of(layer, op), bytes);
    weights_.streamed[static_cast<size_t>(layer)].push_back(weight);
  }
  // Each layer has the first matrix as one segment, and the second as two.
  static StreamingSchedule make_schedule(bool by_layers, int64_t first_row = 0) {
    StreamingSchedule schedule{.layers = kLayers, .by_layers = by_layers};
    for (int layer = 0; layer < kLayers; ++layer) {
      if (layer == kOnDevice) continue;
      schedule.linears.push_back(
          {.layer = layer, .op = kQuery, .spec_op = kQuery, .segments = {{{0, 0, 24}}}});
      schedule.linears.push_back(
          {.layer = layer,
           .op = kDown,
           .spec_op = kDown,
           .segments = {{{0, first_row, 320 - first_row}}, {{0, 320, 380}}}});
    }
    return schedule;
  }
  static constexpr int kSegmentsOfALayer = 3, kSegments = 9;
  std::unique_ptr<WeightStream> make_stream(const WeightStreamOptions& options = {},
                                            bool by_layers = true) {
    return std::make_unique<WeightStream>(
        *machine_.transfers, machine_.host, machine_.queue, weights_,
        std::vector{make_schedule(by_layers), make_schedule(by_layers, 16)}, options);
  }

  // Checks what ops that are queued now would read of a segment.
  void expect_segment(const StreamingSchedule& schedule, int segment,
                      std::span<const WeightView> got) {
    int before = 0;
    for (const StreamedLinear& linear : schedule.linears) {
      const auto count = static_cast<int>(linear.segments.size());
      if (segment >= before + count) {
        before += count;
        continue;
      }
      const OpRows& rows = linear.segments[static_cast<size_t>(segment - before)];
      ASSERT_EQ(got.size(), rows.size());
      for (size_t i = 0; i < rows.size(); ++i) {
        ASSERT_FALSE(got[i].empty());
        EXPECT_EQ(got[i].rows, rows[i].count);
        const auto skipped = rows[i].first * got[i].row_bytes();
        EXPECT_EQ(std::memcmp(got[i].data, bytes_of(linear.layer, linear.op) + skipped,
                              static_cast<size_t>(got[i].bytes())),
                  0)
            << "layer " << linear.layer << ", op " << linear.op;
      }
      return;
    }
  }
  void expect_step(WeightStream& stream, size_t schedule = 0) {
    stream.begin_step(schedule);
    for (int segment = 0; segment < kSegments; ++segment) {
      SCOPED_TRACE(segment);
      expect_segment(stream.schedule(schedule), segment, stream.acquire(segment, stalls_));
      release(stream, segment);
    }
  }
  // Releases a segment and allows the next load, as a step with overlap does.
  static void release(WeightStream& stream, int segment) {
    stream.release(segment);
    stream.load_next();
  }
  uint64_t layer_bytes() const {
    uint64_t bytes = 0;
    for (const StreamedWeight& weight : weights_.streamed[0])
      bytes += static_cast<uint64_t>(weight.view.bytes());
    return bytes;
  }
  // Gives a thread time to do what it should not do.
  static void wait_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

  TempFolder folder_;
  TestMachine machine_;
  StallClock stalls_{machine_.device()};
  std::vector<PinnedBuffer> memory_;
  WeightViews weights_;
};

TEST_P(WeightStreamTest, PiecesComeRoundAndRound) {
  for (const bool by_layers : {true, false}) {
    for (const auto& [slots, overlap, stages] :
         {std::tuple(1, true, 1), {2, true, 16}, {3, true, 2}, {7, true, 5}, {2, false, 3}}) {
      SCOPED_TRACE(testing::Message() << slots << " slots, " << stages << " stages, overlap "
                                      << overlap << ", by layers " << by_layers);
      const auto stream =
          make_stream({.slots = slots, .overlap = overlap, .stages = stages}, by_layers);
      for (int step = 0; step < 3; ++step) expect_step(*stream);
      if (HasFailure()) return;
    }
  }
}

// Segments loaded ahead by one streaming schedule are dropped if the next step uses the other.
TEST_P(WeightStreamTest, StepsMayGoByAnotherOrder) {
  for (const bool by_layers : {true, false}) {
    for (const int slots : {1, 2, 5}) {
      const auto stream = make_stream({.slots = slots}, by_layers);
      for (const size_t schedule : {0, 1, 1, 0, 1, 0, 0}) expect_step(*stream, schedule);
      stream->acquire(0, stalls_);  // a step that ends early
      expect_step(*stream, 1);
      if (HasFailure()) return;
    }
  }
}

// The slots are filled once and no further, since acquired segments stay until they are released.
TEST_P(WeightStreamTest, NothingIsOverwrittenBeforeItsRelease) {
  const auto stream = make_stream({.slots = 2});
  const auto wait_for = [&](int64_t segments) {
    while (stream->segments_loaded() < segments) std::this_thread::yield();
  };
  std::vector<std::span<const WeightView>> held;
  for (int segment = 0; segment < kSegmentsOfALayer; ++segment)
    held.push_back(stream->acquire(segment, stalls_));
  wait_for(2 * kSegmentsOfALayer);
  wait_a_little();
  EXPECT_EQ(stream->segments_loaded(), 2 * kSegmentsOfALayer);
  for (int segment = 0; segment < kSegmentsOfALayer; ++segment)
    expect_segment(stream->schedule(0), segment, held[static_cast<size_t>(segment)]);
  stream->release(0);
  stream->load_next();
  wait_a_little();
  EXPECT_EQ(stream->segments_loaded(), 2 * kSegmentsOfALayer) << "the slot is not left yet";
  stream->release(1);
  stream->release(2);
  wait_for(2 * kSegmentsOfALayer + 1);
  wait_a_little();
  EXPECT_EQ(stream->segments_loaded(), 2 * kSegmentsOfALayer + 1) << "no more were requested";
  expect_segment(stream->schedule(0), 3, stream->acquire(3, stalls_));
}

TEST_P(WeightStreamTest, ComesAheadOfTheCompute) {
  const auto stream = make_stream({.slots = 2});
  while (stream->segments_loaded() < 2 * kSegmentsOfALayer) std::this_thread::yield();
  expect_step(*stream);
}

TEST_P(WeightStreamTest, WithoutOverlapNothingComesUnasked) {
  const auto stream = make_stream({.slots = 3, .overlap = false});
  wait_a_little();
  EXPECT_EQ(stream->segments_loaded(), 0);
  stream->acquire(0, stalls_);
  EXPECT_EQ(stream->segments_loaded(), 1);
  stream->release(0);
  wait_a_little();
  EXPECT_EQ(stream->segments_loaded(), 1);
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

// Steps may end early after a release, or between acquire() and release().
TEST_P(WeightStreamTest, ANewStepMayBeginAnywhere) {
  for (const bool overlap : {true, false}) {
    for (const bool by_layers : {true, false}) {
      const auto stream = make_stream({.overlap = overlap}, by_layers);
      stream->acquire(0, stalls_);
      release(*stream, 0);
      expect_step(*stream);
      stream->acquire(0, stalls_);
      release(*stream, 0);
      stream->acquire(1, stalls_);
      expect_step(*stream);
      expect_step(*stream);
    }
  }
}

TEST_P(WeightStreamTest, ItMayEndAtAnyTime) {
  for (int acquired = 0; acquired < 3; ++acquired) {
    const auto stream = make_stream();
    for (int segment = 0; segment < acquired; ++segment) {
      stream->acquire(segment, stalls_);
      if (segment + 1 < acquired) stream->release(segment);
    }
  }
  EXPECT_EQ(machine_.used(MemoryTag::kStaging), 0u);
}

TEST_P(WeightStreamTest, TakesItsSlotsAndStages) {
  const WeightStreamOptions options{.slots = 3, .stages = 5};
  const uint64_t host_before = machine_.host.usage().total();
  const auto stream = make_stream(options);
  EXPECT_GE(stream->slot_bytes(), layer_bytes());
  EXPECT_EQ(machine_.used(MemoryTag::kStaging), 3 * stream->slot_bytes());
  if (machine_.accelerator && GetParam() != Homes::kNotPinned) {
    EXPECT_EQ(machine_.host.usage().total() - host_before,
              is_on_disk(kDown) ? 5 * kStreamStageBytes : 0);
  }
}

class WeightStreamFromDiskTest : public WeightStreamTest {};

// A load that failed ahead of time is repeated when its segment is acquired, and no error is
// reported.
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
      // Layers that were loaded before the fault are good.
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
