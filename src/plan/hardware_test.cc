// SPDX-License-Identifier: Apache-2.0
#include "plan/hardware.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/link_prices.h"

namespace spillway {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

std::string error_of(const std::string& text) {
  try {
    parse_hardware(text, "file.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(RateCurveTest, IsStraightBetweenPointsByTheirLogarithms) {
  const RateCurve curve({{1, 10}, {100, 1000}, {10000, 1000}});
  EXPECT_DOUBLE_EQ(curve.at(1), 10);
  EXPECT_NEAR(curve.at(10), 100, 1e-9);
  EXPECT_DOUBLE_EQ(curve.at(100), 1000);
  EXPECT_DOUBLE_EQ(curve.at(0.5), 10);
  EXPECT_DOUBLE_EQ(curve.at(1e9), 1000);
  EXPECT_DOUBLE_EQ(curve.best(), 1000);
}

TEST(HardwareTest, EveryShippedMachineIsReadAndWrittenAgain) {
  const auto names = shipped_hardware();
  for (const char* wanted : {"t4", "rtx3090", "a10", "a100", "h200", "laptop", "ci"})
    EXPECT_THAT(names, testing::Contains(wanted));
  EXPECT_THAT(names, testing::Not(testing::Contains("gh200"))) << "its prices are far off";
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Hardware machine = read_hardware(name);
    EXPECT_EQ(machine.name, name);
    EXPECT_FALSE(machine.source.empty());
    const std::string text = hardware_to_json(machine);
    EXPECT_EQ(hardware_to_json(parse_hardware(text, "again")), text);
  }
}

TEST(HardwareTest, WhatAMachineDoesNotSayIsLeftOut) {
  const Hardware t4 = read_hardware("t4");
  EXPECT_EQ(t4.gpu->dequantize_bytes_per_s, 0);
  EXPECT_EQ(t4.pageable_to_device, 0);
  Hardware slow = t4;
  slow.gpu->dequantize_bytes_per_s = 5e10;
  slow.pageable_to_device = 3e9;
  const Hardware again = parse_hardware(hardware_to_json(slow), "again");
  EXPECT_DOUBLE_EQ(again.gpu->dequantize_bytes_per_s, 5e10);
  EXPECT_DOUBLE_EQ(again.to_device_rate(1e9, Hardware::Source::kPageable), 3e9);
  EXPECT_DOUBLE_EQ(again.to_device_rate(1e9, Hardware::Source::kPinned),
                   t4.to_device_rate(1e9, Hardware::Source::kPageable));
}

TEST(HardwareTest, WhatWasMeasuredOfAModelStaysInTheFile) {
  Hardware hardware = read_hardware("h200");
  hardware.meeting_s = 40e-6;
  hardware.splits = {{.shape = {DType::kQ4_0, 12288, 4096},
                      .tokens = 64,
                      .cpu = {12e-6, 500e-6},
                      .link = {0, 800e-6}}};
  const std::string text = hardware_to_json(hardware);
  const Hardware read = parse_hardware(text, "again");
  EXPECT_EQ(hardware_to_json(read), text);
  EXPECT_NEAR(read.meeting_s, 40e-6, 1e-12);
  ASSERT_EQ(read.splits.size(), 1U);
  EXPECT_EQ(read.splits[0].shape, hardware.splits[0].shape);
  EXPECT_EQ(read.splits[0].tokens, 64);
  EXPECT_NEAR(read.splits[0].crossing(), hardware.splits[0].crossing(), 1e-9);
  EXPECT_NEAR(LinkPrices(read).hand_over(1, 1e9, 0) - LinkPrices(read).hand_over(1, 0, 0),
              4e9 / read.to_host.best(), 1e-9);
}

TEST(HardwareTest, UnifiedMemoryIsOneTier) {
  EXPECT_FALSE(read_hardware("gh200").has_device());
  EXPECT_FALSE(read_hardware("ci").has_device());
  EXPECT_TRUE(read_hardware("t4").has_device());
}

TEST(HardwareTest, TheNearestHasTheGpusName) {
  EXPECT_EQ(nearest_hardware("NVIDIA H200", 140 * kGiB, 120 * kGiB).name, "h200");
  EXPECT_EQ(nearest_hardware("Tesla T4", 15 * kGiB, 50 * kGiB).name, "t4");
  EXPECT_EQ(nearest_hardware("NVIDIA GeForce RTX 3090", 24 * kGiB, 64 * kGiB).name, "rtx3090");
  EXPECT_EQ(nearest_hardware("NVIDIA A100-SXM4-80GB", 80 * kGiB, 500 * kGiB).name, "a100");
  EXPECT_EQ(nearest_hardware("NVIDIA GeForce RTX 3060 Laptop GPU", 6 * kGiB, 16 * kGiB).name,
            "laptop");
  EXPECT_EQ(nearest_hardware("", 0, 16 * kGiB).name, "ci");
  // For an unknown GPU it is a machine whose GPU has as much memory.
  EXPECT_EQ(nearest_hardware("Foo 9", 16 * kGiB, 64 * kGiB).gpu->memory_bytes / kGiB, 15U);
}

TEST(HardwareTest, TypesWithoutRatesAreBoundByMemoryOrArithmetic) {
  Processor gpu{.read_bytes_per_s = 100, .flop_per_s = 1000, .launch_s = 1};
  EXPECT_DOUBLE_EQ(linear_seconds(gpu, DType::kF16, 1, 100, 200), 1 + 2);    // 200 bytes
  EXPECT_DOUBLE_EQ(linear_seconds(gpu, DType::kF16, 50, 100, 200), 1 + 10);  // 10,000 FLOP
  gpu.linear[DType::kF16] = RateCurve({{1, 50}, {100, 500}});
  EXPECT_DOUBLE_EQ(linear_seconds(gpu, DType::kF16, 1, 100, 200), 1 + 4);
  EXPECT_DOUBLE_EQ(linear_seconds(gpu, DType::kF16, 0, 100, 200), 0);
  EXPECT_DOUBLE_EQ(attention_seconds(gpu, KvType::kF16, 1, 300), 1 + 3);
  gpu.attention[KvType::kF16] = RateCurve(30);
  EXPECT_DOUBLE_EQ(attention_seconds(gpu, KvType::kF16, 1, 300), 1 + 10);
  EXPECT_DOUBLE_EQ(attention_seconds(gpu, KvType::kF16, 8, 300), 1 + 10)
      << "no measurement says otherwise";
}

TEST(HardwareTest, FewerThreadsHaveTheirPart) {
  Processor host{.threads = 8, .read_bytes_per_s = 80, .flop_per_s = 16, .launch_s = 1};
  host.linear[DType::kF16] = RateCurve({{1, 8}, {64, 16}});
  host.attention[KvType::kF16] = RateCurve(40);
  const Processor two = with_threads(host, 2);
  EXPECT_EQ(two.threads, 2);
  EXPECT_DOUBLE_EQ(two.read_bytes_per_s, 20);
  EXPECT_DOUBLE_EQ(two.flop_per_s, 4);
  EXPECT_DOUBLE_EQ(two.linear.at(DType::kF16).at(64), 4);
  EXPECT_DOUBLE_EQ(attention_seconds(two, KvType::kF16, 1, 10), 1 + 1);
  EXPECT_DOUBLE_EQ(with_threads(host, 16).flop_per_s, 16) << "more were not measured";
  host.threads = 0;
  EXPECT_DOUBLE_EQ(with_threads(host, 2).flop_per_s, 16) << "their number is unknown";
  Hardware machine = read_hardware("h200");
  EXPECT_EQ(parse_hardware(hardware_to_json(machine), "again").host.threads, 16);
}

TEST(HardwareTest, AttentionIsSlowerWhereHeadsShareKeys) {
  const std::string before =
      R"({"version": 1, "host": {"memory_gib": 8, "read_gb_per_s": 20, "tflops": 1,
          "attention_gb_per_s": {"f16": )";
  const auto with = [&](const std::string& rates) { return before + rates + "}}}"; };
  const Hardware machine = parse_hardware(with(R"({"16": 2, "1": 8, "4": 4})"), "m");
  const auto seconds = [&](const Hardware& of, double group) {
    return attention_seconds(of.host, KvType::kF16, group, 8e9);
  };
  EXPECT_DOUBLE_EQ(seconds(machine, 1), 1);
  EXPECT_DOUBLE_EQ(seconds(machine, 4), 2);
  EXPECT_NEAR(seconds(machine, 8), 4 / std::sqrt(2), 1e-9) << "between two, by their logarithms";
  EXPECT_DOUBLE_EQ(seconds(machine, 64), 4);
  const std::string text = hardware_to_json(machine);
  EXPECT_EQ(hardware_to_json(parse_hardware(text, "again")), text);
  EXPECT_DOUBLE_EQ(seconds(parse_hardware(text, "again"), 4), 2);
  EXPECT_DOUBLE_EQ(seconds(parse_hardware(with("8"), "m"), 4), 1) << "as files used to be";
  EXPECT_THAT(error_of(with(R"({"1.5": 8})")), HasSubstr("f16: '1.5' is no number of query heads"));
  EXPECT_THAT(error_of(with(R"({"0": 8})")), HasSubstr("no number of query heads"));
  EXPECT_THAT(error_of(with("{}")), HasSubstr("f16 has no rates"));
  EXPECT_THAT(error_of(with(R"({"4": -1})")), HasSubstr("f16.4 is -1"));
}

TEST(HardwareTest, WhatIsNotAMachineIsRefusedWithItsField) {
  EXPECT_THAT(error_of("{"), HasSubstr("not JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("not an object"));
  EXPECT_THAT(error_of("{}"), HasSubstr("version is missing"));
  EXPECT_THAT(error_of(R"({"version": 7})"), HasSubstr("version 7"));
  EXPECT_THAT(error_of(R"({"version": 1, "name": "x"})"), HasSubstr("host is missing"));
  const std::string host = R"("host": {"memory_gib": 8, "read_gb_per_s": 20, "tflops": 1})";
  EXPECT_EQ(error_of("{\"version\": 1, " + host + "}"), "no error");
  EXPECT_THAT(error_of("{\"version\": 1, " + host + ", \"gpus\": 2}"),
              HasSubstr("gpus is not a field"));
  EXPECT_THAT(
      error_of(R"({"version": 1, "host": {"memory_gib": 8, "read_gb_per_s": -3, "tflops": 1}})"),
      HasSubstr("read_gb_per_s is -3"));
  EXPECT_THAT(
      error_of(R"({"version": 1, "host": {"memory_gib": "8", "read_gb_per_s": 3, "tflops": 1}})"),
      HasSubstr("memory_gib is not a number"));
  EXPECT_THAT(error_of("{\"version\": 1, " + host +
                       R"(, "gpu": {"memory_gib": 8, "read_gb_per_s": 20, "tflops": 1}})"),
              HasSubstr("links is missing"));
  EXPECT_THAT(
      error_of(
          R"({"version": 1, "host": {"memory_gib": 8, "read_gb_per_s": 3, "tflops": 1, "linear_tflops": {"F16": [[8, 1], [4, 2]]}}})"),
      HasSubstr("sizes grow"));
  EXPECT_THAT(
      error_of(
          R"({"version": 1, "host": {"memory_gib": 8, "read_gb_per_s": 3, "tflops": 1, "linear_tflops": {"Q99": 3}}})"),
      HasSubstr("no such type of weights"));
}

TEST(HardwareTest, AnUnknownNameListsThoseThatShip) {
  try {
    read_hardware("t5");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a100"));
    EXPECT_THAT(error.what(), HasSubstr("t5"));
  }
}

TEST(HardwareTest, SmallMatricesLeaveAPartOfTheRate) {
  Processor gpu{.launch_s = 1e-6};
  gpu.linear[DType::kF16] = RateCurve(1e12);
  const auto rate = [&](double tokens, double elements) {
    return 2 * tokens * elements /
           (linear_seconds(gpu, DType::kF16, tokens, elements, 2 * elements) - gpu.launch_s);
  };
  EXPECT_NEAR(rate(8, 1e6), 1e12, 1e6) << "it was not measured";
  gpu.small_share = RateCurve({{1, 0.25}, {64, 0.5}});
  gpu.small_elements = 4e6;
  gpu.large_elements = 64e6;
  EXPECT_NEAR(rate(1, 1e6), 0.25e12, 1e6);
  EXPECT_NEAR(rate(64, 4e6), 0.5e12, 1e6);
  EXPECT_NEAR(rate(1, 16e6), (0.25 + 0.75 / 2) * 1e12, 1e6) << "half the way, by logarithms";
  EXPECT_NEAR(rate(1, 64e6), 1e12, 1e6);

  Hardware machine = read_hardware("h200");
  machine.gpu->small_share = gpu.small_share;
  machine.gpu->small_elements = gpu.small_elements;
  machine.gpu->large_elements = gpu.large_elements;
  const Hardware read = parse_hardware(hardware_to_json(machine), "a file");
  EXPECT_EQ(read.gpu->small_share.points(), gpu.small_share.points());
  EXPECT_EQ(read.gpu->small_elements, gpu.small_elements);
  EXPECT_EQ(read.gpu->large_elements, gpu.large_elements);
}

}  // namespace
}  // namespace spillway
