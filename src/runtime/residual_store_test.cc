// SPDX-License-Identifier: Apache-2.0
#include "runtime/residual_store.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "base/fault_points.h"
#include "storage/test_folder.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

struct ResidualCase {
  bool has_accelerator;
  bool overlap;
};

// Twelve rows in micro-batches of two. With an accelerator four rows are on the device, four in
// host memory and four on disk; without one all but the last four are in memory.
class ResidualStoreTest : public testing::TestWithParam<ResidualCase> {
 protected:
  static constexpr int64_t kTokens = 12, kMicro = 2, kColumns = 7;
  static constexpr uint64_t kBatchBytes = kMicro * kColumns * sizeof(float);

  ResidualStoreTest() : machine_(GetParam().has_accelerator) {}
  void TearDown() override { disarm_faults(); }

  ResidualStoreOptions options(int64_t on_device = 4, int64_t on_host = 4) {
    return {.sizes = {.tokens = kTokens,
                      .device_tokens = on_device,
                      .host_tokens = on_host,
                      .micro_tokens = kMicro,
                      .columns = kColumns},
            .overlap = GetParam().overlap,
            .queue = &machine_.queue,
            .disk_dir = folder_.path()};
  }
  std::unique_ptr<ResidualStore> make(const ResidualStoreOptions& how) {
    return std::make_unique<ResidualStore>(*machine_.transfers, machine_.host, how);
  }

  static float value(int64_t row, int64_t column, int time) {
    return static_cast<float>(row * 100 + column) + static_cast<float>(time) * 10'000;
  }
  // Checks what ops that are queued now would read from rows `first` and following.
  static void expect_rows(const Activations& x, int64_t first, int time) {
    ASSERT_EQ(x.cols, kColumns);
    for (int64_t i = 0; i < x.rows; ++i) {
      for (int64_t j = 0; j < x.cols; ++j)
        ASSERT_EQ(x.f32(i)[j], value(first + i, j, time)) << "row " << first + i;
    }
  }
  static void write_rows(const Activations& x, int64_t first, int time) {
    for (int64_t i = 0; i < x.rows; ++i) {
      for (int64_t j = 0; j < x.cols; ++j) x.f32(i)[j] = value(first + i, j, time);
    }
  }

  // Runs a step as a decoder does: rows are made, pass some layers, and are released.
  void run_step(ResidualStore& store, int layers) {
    for (int64_t first = 0; first < kTokens; first += kMicro) {
      write_rows(store.take(first, kMicro, /*fresh=*/true, stalls_), first, 0);
      store.put(stalls_);
    }
    for (int layer = 0; layer < layers; ++layer) {
      for (int64_t first = 0; first < kTokens; first += kMicro) {
        const Activations x = store.take(first, kMicro, /*fresh=*/false, stalls_);
        const int64_t next = (first + kMicro) % kTokens;
        if (layer + 1 < layers || next > 0) store.expect(next, kMicro, stalls_);
        expect_rows(x, first, layer);
        write_rows(x, first, layer + 1);
        if (layer + 1 < layers) {
          store.put(stalls_);
        } else {
          store.release();
        }
      }
    }
    store.synchronize();
  }

  TempFolder folder_;
  TestMachine machine_;
  StallClock stalls_{machine_.device()};
};

TEST_P(ResidualStoreTest, RowsComeBackAsTheyWerePut) {
  for (const auto& [on_device, on_host] :
       {std::pair(4, 4), {12, 0}, {0, 12}, {0, 0}, {0, 6}, {6, 0}, {5, 3}, {3, 9}}) {
    SCOPED_TRACE(testing::Message() << on_device << " on the device, " << on_host << " in memory");
    const auto store = make(options(on_device, on_host));
    for (int step = 0; step < 3; ++step) run_step(*store, 4);
    if (HasFailure()) return;
  }
}

// There are more micro-batches on disk than the store has events for.
TEST_P(ResidualStoreTest, ManyMicroBatchesOnDiskComeBack) {
  ResidualStoreOptions how = options(0, 0);
  how.sizes.micro_tokens = 1;
  const auto store = make(how);
  for (int time = 0; time < 3; ++time) {
    for (int64_t row = 0; row < kTokens; ++row) {
      const Activations x = store->take(row, 1, /*fresh=*/time == 0, stalls_);
      if (time > 0) expect_rows(x, row, time - 1);
      write_rows(x, row, time);
      store->put(stalls_);
    }
  }
  store->synchronize();
}

TEST_P(ResidualStoreTest, RowsOnTheDeviceStayWhereTheyAre) {
  const auto store = make(options());
  const Activations first = store->take(0, kMicro, true, stalls_);
  write_rows(first, 0, 1);
  store->put(stalls_);
  store->expect(0, kMicro, stalls_);
  const Activations again = store->take(0, kMicro, false, stalls_);
  EXPECT_EQ(again.data, first.data);
  expect_rows(again, 0, 1);
  const ResidualStore::Stats stats = store->take_stats();
  EXPECT_EQ(stats.to_host_bytes + stats.to_device_bytes, 0u);
  EXPECT_EQ(stats.disk_read_bytes + stats.disk_written_bytes, 0u);
}

// A micro-batch with rows in two tiers lives in the slower one.
TEST_P(ResidualStoreTest, TheLastRowDecidesWhereAMicroBatchLives) {
  const bool discrete = GetParam().has_accelerator;
  for (const auto& [first, at_home] : {std::pair<int64_t, Tier>(2, Tier::kDevice),
                                       {3, discrete ? Tier::kHost : Tier::kDevice},
                                       {6, discrete ? Tier::kHost : Tier::kDevice},
                                       {7, Tier::kDisk},
                                       {10, Tier::kDisk}}) {
    SCOPED_TRACE(first);
    const auto store = make(options());
    write_rows(store->take(first, kMicro, true, stalls_), first, 1);
    store->put(stalls_);
    expect_rows(store->take(first, kMicro, false, stalls_), first, 1);
    store->synchronize();
    const ResidualStore::Stats stats = store->take_stats();
    EXPECT_EQ(stats.to_host_bytes, discrete && at_home != Tier::kDevice ? kBatchBytes : 0);
    EXPECT_EQ(stats.to_device_bytes, discrete && at_home != Tier::kDevice ? kBatchBytes : 0);
    EXPECT_EQ(stats.disk_written_bytes, at_home == Tier::kDisk ? kBatchBytes : 0);
    EXPECT_EQ(stats.disk_read_bytes, at_home == Tier::kDisk ? kBatchBytes : 0);
  }
}

TEST_P(ResidualStoreTest, FreshRowsAreNotFetchedNorReleasedOnesStored) {
  const auto store = make(options());
  for (const int64_t first : {4, 8, 10, 6}) {
    write_rows(store->take(first, kMicro, true, stalls_), first, 1);
    store->release();
  }
  store->synchronize();
  const ResidualStore::Stats stats = store->take_stats();
  EXPECT_EQ(stats.to_device_bytes + stats.disk_read_bytes, 0u);
  EXPECT_EQ(stats.to_host_bytes + stats.disk_written_bytes, 0u);
}

TEST_P(ResidualStoreTest, WhatIsExpectedComesOnceAndAheadOfOthers) {
  const auto store = make(options());
  run_step(*store, 1);  // all rows are as they were made
  const auto fetched = [&] {
    const ResidualStore::Stats stats = store->take_stats();
    return stats.to_device_bytes + stats.disk_read_bytes;
  };
  for (const int64_t first : {10, 8}) {
    fetched();
    store->expect(first, kMicro, stalls_);
    store->expect(first, kMicro, stalls_);
    const uint64_t ahead = fetched();
    expect_rows(store->take(first, kMicro, false, stalls_), first, 0);
    const uint64_t all = ahead + fetched();
    EXPECT_EQ(all, GetParam().has_accelerator ? 2 * kBatchBytes : kBatchBytes);
    EXPECT_EQ(ahead, all);
    store->release();
  }
}

TEST_P(ResidualStoreTest, OthersThanWereExpectedMayBeTaken) {
  const auto store = make(options());
  run_step(*store, 1);
  for (int round = 0; round < 3; ++round) {
    store->expect(8, kMicro, stalls_);
    expect_rows(store->take(10, kMicro, false, stalls_), 10, 0);
    store->put(stalls_);
    store->expect(10, kMicro, stalls_);
    write_rows(store->take(6, kMicro, true, stalls_), 6, 0);
    store->put(stalls_);
    expect_rows(store->take(8, kMicro, false, stalls_), 8, 0);
    store->put(stalls_);
    expect_rows(store->take(6, kMicro, false, stalls_), 6, 0);
    store->put(stalls_);
  }
  store->synchronize();
}

// The step with the fault ends with an error, from take() or from synchronize(); the next step is
// right.
TEST_P(ResidualStoreTest, DamageOnDiskEndsTheStepAndNotTheNext) {
  const auto store = make(options());
  for (const char* point : {"spill.flip", "io.read", "io.write"}) {
    for (const uint64_t nth : {1u, 2u, 3u}) {
      SCOPED_TRACE(testing::Message() << point << " " << nth);
      arm_fault(point, nth, FaultKind::kEio);
      try {
        // Values may be wrong until the error is reported, so they are not compared.
        for (int64_t first = 8; first < kTokens; first += kMicro) {
          write_rows(store->take(first, kMicro, true, stalls_), first, 0);
          store->put(stalls_);
        }
        for (int layer = 0; layer < 2; ++layer) {
          for (int64_t first = 8; first < kTokens; first += kMicro) {
            store->take(first, kMicro, false, stalls_);
            store->put(stalls_);
          }
        }
        store->synchronize();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        const bool write = std::string_view(point) == "io.write";
        EXPECT_TRUE(error.code() == ErrorCode::kCorrupt ||
                    (write && error.code() == ErrorCode::kIo));
      }
      disarm_faults();
      store->reset();
      run_step(*store, 3);
    }
  }
}

// The step before ended while rows were taken, expected, or under way.
TEST_P(ResidualStoreTest, ResetForgetsWhatIsOnItsWay) {
  const auto store = make(options());
  run_step(*store, 2);
  for (const int64_t first : {4, 6, 8, 10}) {
    write_rows(store->take(first, kMicro, true, stalls_), first, 9);
    store->put(stalls_);
    store->expect(first, kMicro, stalls_);
    store->reset();
    run_step(*store, 2);
  }
}

TEST_P(ResidualStoreTest, TakesWhatItSaysItNeeds) {
  for (const auto& [on_device, on_host] : {std::pair(4, 4), {12, 0}, {0, 12}, {0, 0}, {5, 3}}) {
    SCOPED_TRACE(testing::Message() << on_device << " on the device, " << on_host << " in memory");
    const bool host_visible = machine_.device().host_visible();
    const ResidualBytes needs =
        residual_bytes(options(on_device, on_host).sizes.on(host_visible), host_visible);
    const auto store = make(options(on_device, on_host));
    EXPECT_EQ(machine_.used(MemoryTag::kActivations),
              needs.device_rows + needs.slot * static_cast<uint64_t>(needs.slots));
    if (!GetParam().has_accelerator) continue;
    const Device::Usage host = machine_.host.usage();
    EXPECT_EQ(host.bytes[static_cast<int>(MemoryTag::kActivations)], needs.host);
    EXPECT_EQ(host.bytes[static_cast<int>(MemoryTag::kStaging)], 2 * needs.bounce);
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, ResidualStoreTest,
                         testing::Values(ResidualCase{true, true}, ResidualCase{true, false},
                                         ResidualCase{false, true}, ResidualCase{false, false}),
                         [](const auto& test) {
                           return std::string(test.param.has_accelerator ? "accelerator" : "host") +
                                  (test.param.overlap ? "" : "_in_turn");
                         });

}  // namespace
}  // namespace spillway
