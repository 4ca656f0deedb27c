// SPDX-License-Identifier: Apache-2.0
#include "memory/transfer_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kPiece = TransferScheduler::kPieceBytes;
using Log = std::vector<std::string>;

// A device whose queues do their work one item at a time, when the test says so or when a thread
// waits for an event. Its log has the copies, by the first byte's address, as they are issued ("+")
// and made ("-").
class ManualDevice final : public Device {
 public:
  ManualDevice() : compute_(*this) {}

  class Queue;
  class Event final : public DeviceEvent {
   public:
    void synchronize() override {
      while (!reached) recorded_in->run_one();
    }
    bool is_reached() const override { return reached; }
    double seconds_after(const DeviceEvent& earlier) const override {
      return at - static_cast<const Event&>(earlier).at;
    }
    Queue* recorded_in = nullptr;
    bool reached = true;
    double at = 0;
  };

  class Queue final : public DeviceStream {
   public:
    explicit Queue(ManualDevice& device) : device_(device) {}
    void copy_to_device(std::span<const CopyPiece> pieces) override { copy(pieces); }
    void copy_to_host(std::span<const CopyPiece> pieces) override { copy(pieces); }
    void run_on_host(std::function<void()> work) override { items_.push_back(std::move(work)); }
    void store(HostSignal& /*signal*/, uint32_t /*value*/) override {}
    void wait(const HostSignal& /*signal*/, uint32_t /*value*/) override {}
    void record(DeviceEvent& event) override {
      auto& mine = static_cast<Event&>(event);
      mine.recorded_in = this;
      mine.reached = false;
      items_.push_back([this, &mine] { mine.reached = true, mine.at = device_.now; });
      run_free();
    }
    void wait(const DeviceEvent& event) override {
      auto& other = const_cast<Event&>(static_cast<const Event&>(event));
      if (!other.reached) items_.push_back([&other] { other.synchronize(); });
    }
    void synchronize() override {
      while (!items_.empty()) run_one();
    }
    void run_one() {
      ASSERT_FALSE(items_.empty()) << "an event is awaited that no queue reaches";
      const std::function<void()> item = std::move(items_.front());
      items_.erase(items_.begin());
      item();
    }

   private:
    void copy(std::span<const CopyPiece> pieces) {
      SPW_CHECK(!device_.fails, kDevice, "this copy fails");
      const std::string name(1,
                             static_cast<char>(reinterpret_cast<uintptr_t>(pieces[0].from) >> 40));
      size_t bytes = 0;
      for (const CopyPiece& piece : pieces) bytes += piece.bytes;
      device_.log.push_back("+" + name);
      items_.push_back([this, name, bytes] {
        device_.log.push_back("-" + name);
        device_.now += static_cast<double>(bytes) / static_cast<double>(kMiB);
      });
    }
    // Events in front of all other work are reached at once.
    void run_free() {
      if (items_.size() == 1) run_one();
    }
    ManualDevice& device_;
    std::vector<std::function<void()>> items_;
  };

  const DeviceInfo& info() const override { return machine_.host.info(); }
  Buffer allocate(size_t bytes, MemoryTag tag) override {
    return machine_.host.allocate(bytes, tag);
  }
  Usage usage() const override { return machine_.host.usage(); }
  Ops& ops() override { return machine_.host.ops(); }
  void synchronize() override {}
  DeviceStream& compute() override { return compute_; }
  std::unique_ptr<DeviceStream> make_stream() override { return std::make_unique<Queue>(*this); }
  std::unique_ptr<DeviceEvent> make_event(bool /*timed*/) override {
    return std::make_unique<Event>();
  }

  Log log;
  bool fails = false;
  double now = 0;

 private:
  void release(std::byte* /*data*/, size_t /*bytes*/, MemoryTag /*tag*/) noexcept override {}

  TestMachine machine_{/*has_accelerator=*/false};
  Queue compute_;
};

class TransferSchedulerTest : public testing::Test {
 protected:
  // Bytes that are told apart by their address; nothing is really copied.
  static CopyPiece piece(char name, size_t bytes) {
    return {nullptr, reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(name) << 40), bytes};
  }
  std::unique_ptr<DeviceStream> awaited(LinkDirection direction) {
    return transfers_.open_awaited(TransferUse::kSwappedKv, direction);
  }
  void to_device(DeviceStream& queue, char name, size_t bytes) {
    const CopyPiece copy = piece(name, bytes);
    queue.copy_to_device({&copy, 1});
  }
  void to_host(DeviceStream& queue, char name, size_t bytes) {
    const CopyPiece copy = piece(name, bytes);
    queue.copy_to_host({&copy, 1});
  }
  TransferStats stats(TransferUse use, LinkDirection direction) const {
    return transfers_.stats()[static_cast<size_t>(use)][static_cast<size_t>(direction)];
  }
  int issued(const std::string& name) const {
    return static_cast<int>(std::ranges::count(device_.log, "+" + name));
  }

  ManualDevice device_;
  TransferScheduler transfers_{device_};
};

constexpr auto kUp = LinkDirection::kToDevice, kDown = LinkDirection::kToHost;

TEST_F(TransferSchedulerTest, AwaitedCopiesAreIssuedWhenTheyAreCalled) {
  const auto first = awaited(kUp), second = awaited(kUp);
  to_device(*first, 'a', 64 * kMiB);
  to_device(*second, 'b', 64 * kMiB);
  to_device(*first, 'c', 64 * kMiB);
  EXPECT_EQ(device_.log, (Log{"+a", "+b", "+c"}));
}

TEST_F(TransferSchedulerTest, WithoutOtherUsersWeightsAreIssuedAtOnce) {
  const auto weights = transfers_.open_read_ahead(TransferUse::kWeights);
  const auto out = awaited(kDown);  // the other direction
  to_device(*weights, 'w', 10 * kPiece);
  EXPECT_EQ(std::ranges::count(device_.log, "-w"), 0);
  EXPECT_EQ(stats(TransferUse::kWeights, kUp).bytes, 10 * kPiece);
}

TEST_F(TransferSchedulerTest, FewPiecesOfWeightsAreInFlight) {
  const auto weights = transfers_.open_read_ahead(TransferUse::kWeights);
  const auto kv = awaited(kUp);
  to_device(*weights, 'w', 10 * kPiece);
  EXPECT_EQ(issued("w"), 10);
  int in_flight = 0;
  for (const std::string& entry : device_.log) {
    in_flight += entry == "+w" ? 1 : -1;
    EXPECT_LE(in_flight, static_cast<int>(TransferScheduler::kPiecesInFlight));
  }
}

TEST_F(TransferSchedulerTest, WeightsWaitForAnAwaitedCopyThatRuns) {
  const auto weights = transfers_.open_read_ahead(TransferUse::kWeights);
  const auto kv = awaited(kUp);
  to_device(*weights, 'w', kPiece);
  to_device(*kv, 'k', kMiB);
  to_device(*weights, 'v', kPiece);
  EXPECT_EQ(device_.log, (Log{"+w", "+k", "-k", "+v"}));
  EXPECT_GT(stats(TransferUse::kWeights, kUp).held_s, 0);
}

TEST_F(TransferSchedulerTest, SmallAwaitedCopiesHoldNothingUp) {
  const auto weights = transfers_.open_read_ahead(TransferUse::kWeights);
  const auto kv = awaited(kUp);
  to_device(*kv, 'k', TransferScheduler::kTrackedBytes - 1);
  to_device(*weights, 'w', kPiece);
  EXPECT_EQ(device_.log, (Log{"+k", "+w"}));
}

// The op may wait for the weights that would be held up.
TEST_F(TransferSchedulerTest, AnAwaitedCopyThatWaitsForAnOpHoldsNothingUp) {
  const auto weights = transfers_.open_read_ahead(TransferUse::kWeights);
  const auto kv = awaited(kUp);
  const auto attended = device_.make_event(false);
  device_.compute().run_on_host([] {});  // an op that is not done
  device_.compute().record(*attended);
  kv->wait(*attended);
  to_device(*kv, 'k', kMiB);
  to_device(*weights, 'w', kPiece);
  EXPECT_EQ(device_.log, (Log{"+k", "+w"}));
}

TEST_F(TransferSchedulerTest, WeightsThatOpsWaitForAreNotHeldUp) {
  const auto weights = transfers_.open_read_ahead(TransferUse::kWeights);
  const auto kv = awaited(kUp);
  to_device(*kv, 'k', kMiB);
  weights->set_urgent(true);
  to_device(*weights, 'w', kPiece);
  EXPECT_EQ(device_.log, (Log{"+k", "+w"}));
}

TEST_F(TransferSchedulerTest, WithoutOtherUsersCopiesOutAreIssuedAtOnce) {
  const auto out = transfers_.open_copies_out(TransferUse::kStoredKv);
  std::vector<CopyPiece> pieces;
  for (int i = 0; i < 20; ++i) pieces.push_back(piece('o', kPiece));
  int done = 0;
  out->add(pieces, [&](bool failed) { done += failed ? 100 : 1; });
  EXPECT_EQ(issued("o"), 20);
  EXPECT_EQ(done, 0);
  out->synchronize();
  EXPECT_EQ(done, 1);
}

TEST_F(TransferSchedulerTest, CopiesOutWaitForAnAwaitedCopyThatRuns) {
  const auto out = transfers_.open_copies_out(TransferUse::kStoredKv);
  const auto kv = awaited(kDown);
  to_host(*kv, 'k', kMiB);
  bool done = false;
  out->add({piece('o', kMiB)}, [&](bool failed) { done = !failed; });
  EXPECT_EQ(device_.log, (Log{"+k"}));
  transfers_.issue_copies_out();
  EXPECT_EQ(device_.log, (Log{"+k"})) << "the awaited copy still runs";
  kv->synchronize();
  transfers_.issue_copies_out();
  EXPECT_EQ(device_.log, (Log{"+k", "-k", "+o"}));
  out->synchronize();
  EXPECT_TRUE(done);
}

TEST_F(TransferSchedulerTest, WhoOverwritesBlocksWaitsForTheirCopies) {
  const auto out = transfers_.open_copies_out(TransferUse::kStoredKv);
  const auto kv = awaited(kDown), in = awaited(kUp);
  to_host(*kv, 'k', kMiB);
  out->add({piece('o', kMiB)}, [](bool /*failed*/) {});
  out->make_wait(*in);
  EXPECT_EQ(device_.log, (Log{"+k", "+o"}));
  to_device(*in, 'i', kMiB);
  in->synchronize();
  EXPECT_EQ(device_.log, (Log{"+k", "+o", "+i", "-o", "-i"}));
}

TEST_F(TransferSchedulerTest, AFailedCopyOutEndsNothingElse) {
  const auto out = transfers_.open_copies_out(TransferUse::kStoredKv);
  Log ended;
  const auto add = [&](char name) {
    out->add({piece(name, kMiB)}, [&ended, name](bool failed) {
      ended.push_back((failed ? "failed " : "made ") + std::string(1, name));
    });
  };
  add('a');
  device_.fails = true;
  EXPECT_NO_THROW(add('b'));
  device_.fails = false;
  add('c');
  out->synchronize();
  EXPECT_EQ(ended, (Log{"made a", "failed b", "made c"}));
}

TEST_F(TransferSchedulerTest, AFailedAwaitedCopyIsThrownToItsCallerAlone) {
  const auto kv = awaited(kUp), other = awaited(kUp);
  const auto weights = transfers_.open_read_ahead(TransferUse::kWeights);
  device_.fails = true;
  EXPECT_THROW(to_device(*kv, 'k', kMiB), Error);
  device_.fails = false;
  to_device(*other, 'o', kMiB);
  to_device(*weights, 'w', kPiece);
  EXPECT_EQ(device_.log, (Log{"+o", "-o", "+w"}));
}

TEST_F(TransferSchedulerTest, CopiesOutThatAreAbandonedHaveFailed) {
  const auto out = transfers_.open_copies_out(TransferUse::kStoredKv);
  const auto kv = awaited(kDown);
  to_host(*kv, 'k', kMiB);
  int failures = 0;
  for (int i = 0; i < 3; ++i)
    out->add({piece('o', kMiB)}, [&](bool failed) { failures += failed ? 1 : 0; });
  out->abandon();
  EXPECT_EQ(failures, 3);
  EXPECT_EQ(issued("o"), 0);
}

TEST_F(TransferSchedulerTest, BytesCopiesAndBusyTimeAreCounted) {
  const auto kv = awaited(kUp);
  for (int i = 0; i < 3; ++i) {
    to_device(*kv, 'k', 5 * kMiB);  // takes 5 s
    kv->synchronize();
  }
  to_device(*kv, 'k', 1);
  to_device(*kv, 'k', kMiB);
  const TransferStats counted = stats(TransferUse::kSwappedKv, kUp);
  EXPECT_EQ(counted.bytes, 16 * kMiB + 1);
  EXPECT_EQ(counted.copies, 5);
  EXPECT_DOUBLE_EQ(counted.busy_s, 15);
  EXPECT_EQ(stats(TransferUse::kSwappedKv, kDown).bytes, 0U);
}

// On an emulated link that all queues share, the bytes of all uses arrive as they were sent.
TEST(TransferSchedulerOnALinkTest, AllBytesArrive) {
  EmulatedAcceleratorOptions options;
  options.bytes_per_s = 4'000'000'000;
  options.shares_link = true;
  EmulatedAccelerator device(options);
  TransferScheduler transfers(device);
  const auto weights = transfers.open_read_ahead(TransferUse::kWeights);
  const auto in = transfers.open_awaited(TransferUse::kSwappedKv, kUp);
  const auto down = transfers.open_awaited(TransferUse::kSwappedKv, kDown);
  const auto out = transfers.open_copies_out(TransferUse::kStoredKv);
  const size_t bytes = 2 * kPiece + 12345;
  Buffer on_device = device.allocate(bytes, MemoryTag::kKv);
  std::vector<std::byte> up(bytes), back(bytes), stored(bytes);
  for (size_t i = 0; i < bytes; ++i) up[i] = static_cast<std::byte>(i * 7);
  const CopyPiece whole{on_device.data(), up.data(), bytes};
  weights->copy_to_device({&whole, 1});
  const auto loaded = device.make_event();
  weights->record(*loaded);
  device.compute().wait(*loaded);
  const CopyPiece down_piece{back.data(), on_device.data(), bytes};
  down->wait(*loaded);
  down->copy_to_host({&down_piece, 1});
  std::atomic<bool> done = false;
  out->add({{stored.data(), on_device.data(), bytes}}, [&](bool failed) { done = !failed; });
  Buffer other = device.allocate(bytes, MemoryTag::kKv);
  const CopyPiece into_other{other.data(), up.data(), bytes};
  in->copy_to_device({&into_other, 1});
  in->synchronize();
  down->synchronize();
  out->synchronize();
  EXPECT_TRUE(done);
  EXPECT_EQ(back, up);
  EXPECT_TRUE(std::ranges::equal(up, std::span(other.data(), bytes)));
  EXPECT_EQ(stored, up);
}

}  // namespace
}  // namespace spillway
