// SPDX-License-Identifier: Apache-2.0
#include "measure/measure_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "storage/test_folder.h"
#include "tests/test_machine.h"

namespace spillway {
namespace {

// These sizes are small enough for any machine; the results say nothing about its speed.
MeasureMachineOptions tiny_options(const std::filesystem::path& dir) {
  MeasureMachineOptions options;
  options.seconds = 0.01;
  options.disk_dir = dir;
  options.disk_bytes = uint64_t{32} << 20;
  options.sizes = ProcessorSizes{
      .matrix_side = 256, .rotate_bytes = 1 << 20, .kv_bytes = 1 << 20, .prompt_tokens = 32};
  options.largest_transfer = 1 << 20;
  return options;
}

void expect_rates(const Processor& of) {
  EXPECT_FALSE(of.name.empty());
  EXPECT_GT(of.memory_bytes, 0U);
  for (const double rate : {of.read_bytes_per_s, of.flop_per_s, of.launch_s, of.activations_per_s,
                            of.prompt_attention_flop_per_s}) {
    EXPECT_GT(rate, 0);
    EXPECT_TRUE(std::isfinite(rate));
  }
  for (const DType type : {DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K,
                           DType::kQ8_0, DType::kG4}) {
    SCOPED_TRACE(dtype_name(type));
    ASSERT_TRUE(of.linear.contains(type));
    const auto& points = of.linear.at(type).points();
    ASSERT_GE(points.size(), 2U);  // even without time: one token, and many
    EXPECT_EQ(points.front().first, 1);
    for (const auto& [tokens, rate] : points) EXPECT_GT(rate, 0);
  }
  for (const KvType type : kAllKvTypes) {
    const auto& points = of.attention.at(type).points();
    ASSERT_EQ(points.size(), 3U);  // one, four and eight query heads per KV head
    EXPECT_EQ(points.back().first, 8);
    for (const auto& [group, rate] : points) EXPECT_GT(rate, 0);
  }
}

TEST(MeasureMachineTest, AHostWithoutAGpuHasRatesAndNoLinks) {
  const TempFolder folder;
  TestMachine machine(false);
  const Hardware found =
      measure_machine(machine.host, nullptr, machine.queue, tiny_options(folder.path()));
  EXPECT_FALSE(found.gpu);
  EXPECT_FALSE(found.has_device());
  expect_rates(found.host);
  EXPECT_EQ(found.host.name, machine.host.info().hardware);
  EXPECT_EQ(found.host.threads, 2);
  EXPECT_GT(found.disk_read, 0);
  EXPECT_GT(found.disk_write, 0);
  EXPECT_GT(found.disk_bytes, 0U);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const std::string text = hardware_to_json(found);
  EXPECT_EQ(hardware_to_json(parse_hardware(text, "again")), text);
}

TEST(MeasureMachineTest, AnAcceleratorIsMeasuredWithItsLinksAndLeavesNothing) {
  const TempFolder folder;
  TestMachine machine(true);
  const Hardware found = measure_machine(machine.host, machine.accelerator.get(), machine.queue,
                                         tiny_options(folder.path()));
  ASSERT_TRUE(found.has_device());
  expect_rates(*found.gpu);
  expect_rates(found.host);
  EXPECT_EQ(found.name, found.gpu->name);
  for (const RateCurve* curve : {&found.to_device, &found.to_host}) {
    EXPECT_EQ(curve->points().front().first, double{kSmallestTransfer});
    EXPECT_EQ(curve->points().back().first, 1 << 20);
    for (const auto& [bytes, rate] : curve->points()) EXPECT_GT(rate, 0);
  }
  EXPECT_GT(found.transfer_s, 0);
  EXPECT_GT(found.meeting_s, 0);
  EXPECT_GT(found.pin_bytes_per_s, 0);
  for (const double share : {found.link_beside_cpu, found.cpu_beside_link}) {
    EXPECT_GT(share, 0);
    EXPECT_LE(share, 1);
  }
  EXPECT_EQ(machine.accelerator->pinned_bytes(), 0U);
  EXPECT_EQ(machine.used(MemoryTag::kWeights), 0U);
  EXPECT_EQ(machine.used(MemoryTag::kKv), 0U);
  const std::string text = hardware_to_json(found);
  EXPECT_EQ(hardware_to_json(parse_hardware(text, "again")), text);
}

TEST(MeasureMachineTest, MemoryThatCannotBePinnedIsMeasuredAllTheSame) {
  const TempFolder folder;
  TestMachine machine(true, 0);
  const Hardware found = measure_machine(machine.host, machine.accelerator.get(), machine.queue,
                                         tiny_options(folder.path()));
  EXPECT_EQ(found.pin_bytes_per_s, 0);
  EXPECT_GT(found.to_device.best(), 0);
}

TEST(MeasureMachineTest, ProgressGrowsAndStoppingIsAnError) {
  const TempFolder folder;
  TestMachine machine(false);
  MeasureMachineOptions options = tiny_options(folder.path());
  double last = 0;
  std::atomic<bool> cancel = false;
  options.cancel = &cancel;
  options.progress = [&](double share, std::string_view what) {
    EXPECT_GE(share, last);
    EXPECT_LE(share, 1);
    last = share;
    if (what.find("attention") != std::string_view::npos) cancel = true;
  };
  try {
    measure_machine(machine.host, nullptr, machine.queue, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
}

TEST(MeasureMachineTest, AFolderThatIsNotThereIsNamed) {
  TestMachine machine(false);
  try {
    measure_machine(machine.host, nullptr, machine.queue, tiny_options("/no/such/folder"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("/no/such/folder"));
  }
}

}  // namespace
}  // namespace spillway
