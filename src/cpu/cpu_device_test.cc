// SPDX-License-Identifier: Apache-2.0
#include "cpu/cpu_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/fault_points.h"

namespace spillway {
namespace {

TEST(CpuDeviceTest, SaysWhatItRunsOn) {
  CpuDevice device({.threads = 2});
  EXPECT_EQ(device.info().name, "cpu");
  EXPECT_FALSE(device.info().hardware.empty());
  EXPECT_THAT(device.info().features, testing::HasSubstr("vectors: "));
  EXPECT_GT(device.info().memory_bytes, int64_t{1} << 28);
  EXPECT_EQ(device.info().threads, 2);
  EXPECT_EQ(device.pool().threads(), 2);
}

TEST(CpuDeviceTest, CountsBytesByTagAndRemembersThePeak) {
  CpuDevice device({.threads = 1});
  {
    const Buffer weights = device.allocate(1000, MemoryTag::kWeights);
    Buffer kv = device.allocate(size_t{5} << 20, MemoryTag::kKv);
    EXPECT_EQ(device.usage().bytes[static_cast<int>(MemoryTag::kWeights)], 1000U);
    EXPECT_EQ(device.usage().bytes[static_cast<int>(MemoryTag::kKv)], size_t{5} << 20);
    kv = Buffer();
    EXPECT_EQ(device.usage().bytes[static_cast<int>(MemoryTag::kKv)], 0U);
  }
  EXPECT_EQ(device.usage().bytes[static_cast<int>(MemoryTag::kWeights)], 0U);
  EXPECT_EQ(device.usage().peak_bytes, 1000U + (size_t{5} << 20));
}

TEST(CpuDeviceTest, AlignsSmallBuffersToCacheLinesAndLargeOnesToHugePages) {
  CpuDevice device({.threads = 1});
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{4097}, size_t{9} << 20}) {
    const Buffer buffer = device.allocate(bytes, MemoryTag::kActivations);
    const size_t alignment = bytes >= (size_t{4} << 20) ? size_t{2} << 20 : 64;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % alignment, 0U) << bytes;
    std::memset(buffer.data(), 1, bytes);
  }
}

TEST(CpuDeviceTest, AFailedAllocationIsAnErrorAndLeavesNothing) {
  CpuDevice device({.threads = 1});
  for (const size_t bytes : {size_t{100}, size_t{9} << 20}) {
    arm_fault("alloc.host", 1, FaultKind::kEnomem);
    try {
      const Buffer buffer = device.allocate(bytes, MemoryTag::kKv);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    }
    EXPECT_EQ(device.usage().bytes[static_cast<int>(MemoryTag::kKv)], 0U);
    EXPECT_EQ(device.allocate(bytes, MemoryTag::kKv).bytes(), bytes);
    disarm_faults();
  }
}

TEST(CpuDeviceTest, RefusesMoreThanThereIsAndStaysUsable) {
  CpuDevice device({.threads = 1});
  const auto total = static_cast<size_t>(device.info().memory_bytes);
  for (const size_t bytes : {total, 4 * total, std::numeric_limits<size_t>::max() / 2,
                             std::numeric_limits<size_t>::max()}) {
    try {
      const Buffer buffer = device.allocate(bytes, MemoryTag::kKv);
      FAIL() << bytes << " bytes were handed out";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_THAT(error.what(), testing::HasSubstr("available"));
    }
  }
  EXPECT_EQ(device.usage().peak_bytes, 0U);
  EXPECT_FALSE(device.allocate(64, MemoryTag::kKv).empty());
}

TEST(CpuDeviceTest, RejectsAThreadCountThatMakesNoSense) {
  EXPECT_THROW(CpuDevice({.threads = -1}), Error);
}

}  // namespace
}  // namespace spillway
