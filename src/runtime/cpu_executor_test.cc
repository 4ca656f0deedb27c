// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu_executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "memory/pinned_buffer.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

// Runs with an accelerator beside the host, and on the host alone.
class CpuExecutorTest : public testing::TestWithParam<bool> {
 protected:
  uint32_t start(std::function<void()> work) {
    return executor_.start(device_.compute(), *ready_, std::move(work));
  }

  TestMachine machine_{GetParam()};
  Device& device_ = machine_.device();
  CpuExecutor executor_{device_};
  std::unique_ptr<HostSignal> ready_ = device_.make_signal();
};

TEST_P(CpuExecutorTest, WorksThroughWhatItIsGivenInOrder) {
  std::vector<uint32_t> done, expected;
  for (uint32_t i = 1; i <= 100; ++i) {
    expected.push_back(start([&done, i] { done.push_back(i); }));
    EXPECT_EQ(expected.back(), i);
  }
  executor_.synchronize();
  EXPECT_EQ(done, expected);
  executor_.synchronize();  // there is no work
}

// The accelerator's copies arrive late, so that work which begins too early finds old bytes.
TEST_P(CpuExecutorTest, WorkBeginsWhenItsQueueIsThere) {
  constexpr size_t kBytes = 4096;
  Buffer on_device = device_.allocate(kBytes, MemoryTag::kStaging);
  PinnedBuffer here(machine_.host, device_, kBytes, MemoryTag::kStaging);
  const std::unique_ptr<DeviceStream> side = device_.make_stream();
  for (int i = 0; i < 20; ++i) {
    const std::vector<std::byte> bytes(kBytes, static_cast<std::byte>(i + 1));
    device_.copy_to_device(on_device.data(), bytes.data(), kBytes);
    std::memset(here.data(), 0, kBytes);
    const CopyPiece down{here.data(), on_device.data(), kBytes};
    side->copy_to_host({&down, 1});
    bool same = false;
    executor_.start(*side, *ready_,
                    [&] { same = std::memcmp(here.data(), bytes.data(), kBytes) == 0; });
    executor_.synchronize();
    EXPECT_TRUE(same) << i;
  }
}

TEST_P(CpuExecutorTest, OpsWaitForTheWorkOfANumber) {
  std::atomic<int> done = 0;
  for (int i = 1; i <= 5; ++i) {
    const uint32_t number = start([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++done;
    });
    executor_.wait_for_work(number);
    device_.compute().synchronize();
    EXPECT_GE(done, i);
  }
}

TEST_P(CpuExecutorTest, ThrowsWhatWentWrongFirstAndLeavesOutWhatIsBehind) {
  std::vector<int> done;
  start([&] { done.push_back(1); });
  start([] { throw std::runtime_error("first"); });
  const uint32_t last = start([&] { done.push_back(3); });
  start([] { throw std::runtime_error("second"); });
  executor_.wait_for_work(last);  // must return although work was skipped
  device_.compute().synchronize();
  try {
    executor_.synchronize();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(done, std::vector{1});
  executor_.synchronize();  // the failure was thrown once
  start([&] { done.push_back(5); });
  executor_.synchronize();
  EXPECT_EQ(done, (std::vector{1, 5}));
}

TEST_P(CpuExecutorTest, AResetForgetsWhatWentWrong) {
  std::vector<int> done;
  start([] { throw std::runtime_error("lost"); });
  start([&] { done.push_back(2); });
  executor_.reset();
  EXPECT_TRUE(done.empty());
  start([&] { done.push_back(3); });
  executor_.synchronize();
  EXPECT_EQ(done, std::vector{3});
}

TEST_P(CpuExecutorTest, EndsWithNothingLeftToDo) {
  std::atomic<int> done = 0;
  {
    CpuExecutor executor(device_);
    for (int i = 0; i < 5; ++i) {
      executor.start(device_.compute(), *ready_, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 5);
}

INSTANTIATE_TEST_SUITE_P(Machines, CpuExecutorTest, testing::Bool(), [](const auto& kind) {
  return kind.param ? "accelerator" : "host_alone";
});

// A device with the host's memory, which has failed.
class LostDevice final : public Device {
 public:
  explicit LostDevice(Device& host) : host_(host) {}
  const DeviceInfo& info() const override { return host_.info(); }
  Buffer allocate(size_t bytes, MemoryTag tag) override { return host_.allocate(bytes, tag); }
  Usage usage() const override { return host_.usage(); }
  Ops& ops() override { return host_.ops(); }
  void synchronize() override { fail(ErrorCode::kIo, "the device is lost"); }

 private:
  void release(std::byte* /*data*/, size_t /*bytes*/, MemoryTag /*tag*/) noexcept override {}
  Device& host_;
};

// A queue that never does its work.
class LostQueue final : public DeviceStream {
 public:
  void copy_to_device(std::span<const CopyPiece> /*pieces*/) override {}
  void copy_to_host(std::span<const CopyPiece> /*pieces*/) override {}
  void run_on_host(std::function<void()> /*work*/) override {}
  void store(HostSignal& /*signal*/, uint32_t /*value*/) override {}
  void wait(const HostSignal& /*signal*/, uint32_t /*value*/) override {}
  void record(DeviceEvent& /*event*/) override {}
  void wait(const DeviceEvent& /*event*/) override {}
  void synchronize() override {}
};

TEST(CpuExecutorResetTest, DoesNotWaitForADeviceThatIsLost) {
  TestMachine machine(/*has_accelerator=*/false);
  LostDevice device(machine.host);
  LostQueue queue;
  CpuExecutor executor(device);
  HostSignal never;
  int done = 0;
  for (int i = 0; i < 3; ++i) executor.start(queue, never, [&] { ++done; });
  executor.reset();
  EXPECT_EQ(done, 0);
  HostSignal ready;
  executor.start(machine.host.compute(), ready, [&] { ++done; });
  executor.synchronize();
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace spillway
