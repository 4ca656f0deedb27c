// SPDX-License-Identifier: Apache-2.0
#include "device/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "device/tuning_text.h"

namespace spillway {
namespace {

constexpr LinearShape kShape{DType::kQ4_0, WeightLayout::kGroups16, 4096, 2048};

TuningTables two_machines() {
  TuningTables tables;
  TuningTable& first = tables[{"cpu", "A \"quoted\" name", "dotprod; vectors: NEON", 2}];
  first.set(kShape, {2, 24});
  first.set({DType::kF16, WeightLayout::kRows, 32000, 2048}, {4, kNeverInflection});
  tables[{"cpu", "B", "avx2", 16}].set(kShape, {2, 2});
  return tables;
}

TEST(TuningTableTest, KernelsTakeOverAtTheirPoints) {
  const InflectionPoints points{4, 16};
  EXPECT_EQ(kernel_at(points, 1), LinearKernel::kGemv);
  EXPECT_EQ(kernel_at(points, 3), LinearKernel::kGemv);
  EXPECT_EQ(kernel_at(points, 4), LinearKernel::kFlat);
  EXPECT_EQ(kernel_at(points, 15), LinearKernel::kFlat);
  EXPECT_EQ(kernel_at(points, 16), LinearKernel::kGemm);
  EXPECT_EQ(kernel_at(points, 1 << 20), LinearKernel::kGemm);
}

TEST(TuningTableTest, OneTokenIsGemvWhereTheDeviceHasNoOtherChoice) {
  EXPECT_EQ(kernel_at({2, 2}, 1), LinearKernel::kGemv);
  EXPECT_EQ(kernel_at({2, 2}, 2), LinearKernel::kGemm);
  EXPECT_EQ(kernel_at({1, 9}, 0), LinearKernel::kGemv);
  EXPECT_EQ(kernel_at({1, 9}, 1), LinearKernel::kFlat);
}

TEST(TuningTableTest, ShapesAreToldApart) {
  TuningTable table;
  table.set(kShape, {3, 40});
  EXPECT_EQ(table.try_points(kShape), (InflectionPoints{3, 40}));
  for (LinearShape other : {LinearShape{DType::kQ4_1, kShape.layout, kShape.n, kShape.k},
                            LinearShape{kShape.dtype, WeightLayout::kRows, kShape.n, kShape.k},
                            LinearShape{kShape.dtype, kShape.layout, kShape.k, kShape.n}}) {
    EXPECT_EQ(table.try_points(other), std::nullopt);
  }
  EXPECT_EQ(TuningTable({5, 6}).try_points(kShape), (InflectionPoints{5, 6}));
}

TEST(TuningTableTest, NewerMeasurementsWin) {
  TuningTable old, newer;
  const LinearShape other{DType::kF16, WeightLayout::kRows, 1, 1};
  old.set(kShape, {2, 8});
  old.set(other, {2, 9});
  newer.set(kShape, {2, 10});
  old.merge(newer);
  EXPECT_EQ(old.try_points(kShape)->m2, 10);
  EXPECT_EQ(old.try_points(other)->m2, 9);
}

TEST(TuningTextTest, WhatIsWrittenIsRead) {
  EXPECT_EQ(parse_tuning_text(tuning_text(two_machines()), "t"), two_machines());
  EXPECT_EQ(parse_tuning_text(tuning_text({}), "t"), TuningTables{});
}

// Each field in turn is replaced by a value that must be refused.
TEST(TuningTextTest, EveryFieldIsChecked) {
  const std::string good = tuning_text(two_machines());
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      parse_tuning_text(text, "tuning.json");
      ADD_FAILURE() << "accepted: " << to;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << to;
      EXPECT_THAT(error.what(), testing::HasSubstr("tuning.json"));
    }
  };
  refused("spillway-tuning", "something-else");
  refused("\"version\": 1", "\"version\": 2");
  refused("\"version\": 1", "\"version\": \"1\"");
  refused("\"version\": 1", "\"version\": 1.5");
  refused("\"machines\": [", "\"machines\": 1, \"x\": [");
  refused("\"threads\": 2", "\"threads\": 0");
  refused("\"threads\": 2", "\"threads\": -1");
  refused("\"threads\": 2", "\"threads\": 18446744073709551615");
  refused("\"device\": \"cpu\"", "\"device\": null");
  refused("\"hardware\"", "\"hardwear\"");
  refused("Q4_0", "Q4_9");
  refused("groups16", "groups17");
  refused("\"n\": 4096", "\"n\": 0");
  refused("\"n\": 4096", "\"n\": 1e300");
  refused("\"k\": 2048", "\"k\": -2048");
  refused("\"k\": 2048", "\"k\": 9223372036854775808");
  refused("\"m1\": 2", "\"m1\": 1");
  refused("\"m1\": 2", "\"m1\": [2]");
  refused("\"m2\": 24", "\"m2\": 2147483648");
  refused("\"m2\": 24", "\"m2\": -9223372036854775808");
  refused("\"linear\": [", "\"linear\": {}, \"y\": [");
}

TEST(TuningTextTest, DamagedTextsAreRefused) {
  const std::string good = tuning_text(two_machines());
  std::vector<std::string> bad = {
      "", "null", "[]", "{}", "\xff", "1", "[[[", std::string(100000, '['), good + "x"};
  bad.push_back(std::string(kMaxTuningBytes + 1, ' '));
  for (size_t cut = 0; cut + 1 < good.size(); cut += 7) bad.push_back(good.substr(0, cut));
  for (const std::string& text : bad) {
    EXPECT_THROW(parse_tuning_text(text, "t"), Error) << text.substr(0, 60);
  }
}

TEST(TuningTextTest, ErrorsArePrintable) {
  const std::string good = tuning_text(two_machines());
  std::string text = good;
  text.replace(text.find("Q4_0"), 4, "\\u001b[31m\\n");
  try {
    parse_tuning_text(text, "t");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find_first_of("\x1b\n"), std::string::npos);
  }
}

TEST(TunedMachineTest, CardsOfOneKindShareTheirMeasurements) {
  DeviceInfo info{.name = "cuda:0", .hardware = "H", .features = "sm_90", .threads = 132};
  const TunedMachine first = tuned_machine(info);
  info.name = "cuda:1";
  EXPECT_EQ(tuned_machine(info), first);
  info.threads = 66;
  EXPECT_NE(tuned_machine(info), first);
}

}  // namespace
}  // namespace spillway
