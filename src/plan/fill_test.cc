// SPDX-License-Identifier: Apache-2.0
#include "plan/fill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace spillway {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

FillRequest opt_30b() {
  FillRequest r;
  r.has_device = true;
  r.device_bytes = 16 * kGiB;
  r.host_bytes = 100 * kGiB;
  r.matrix_bytes = 55 * kGiB;
  r.layers = 48;
  r.fixed_bytes = 2 * kGiB;
  r.kv_bytes = 30 * kGiB;
  r.kv_staging_bytes = kGiB;
  return r;
}

TEST(FillTest, EverythingOnADeviceThatHoldsIt) {
  FillRequest r = opt_30b();
  r.device_bytes = 140 * kGiB;
  EXPECT_TRUE(fill_from_the_top(r).all_on_device());
}

TEST(FillTest, ALargeCacheGoesToTheHostAndWeightsFillTheDevice) {
  const Plan plan = fill_from_the_top(opt_30b());
  EXPECT_EQ(plan.kv.host, 1);
  EXPECT_GT(plan.weights.device, 0.15);
  EXPECT_LT(plan.weights.device, 0.24);
  EXPECT_NEAR(plan.weights.device + plan.weights.host, 1, 1e-9);
}

TEST(FillTest, ASmallCacheStays) {
  FillRequest r = opt_30b();
  r.kv_bytes = kGiB;
  const Plan plan = fill_from_the_top(r);
  EXPECT_EQ(plan.kv.device, 1);
  EXPECT_LT(plan.weights.device, 0.25);
}

TEST(FillTest, TheDiskTakesTheRestIfItMay) {
  FillRequest r = opt_30b();
  r.host_bytes = 50 * kGiB;
  EXPECT_THROW(fill_from_the_top(r), Error);
  r.disk_bytes = 60 * kGiB;
  const Plan plan = fill_from_the_top(r);
  EXPECT_GT(plan.weights.disk, 0.4);
  EXPECT_NEAR(plan.weights.device + plan.weights.host + plan.weights.disk, 1, 1e-9);
}

TEST(FillTest, WithoutADeviceTheHostIsFilledAndTheRestComesFromDisk) {
  FillRequest r = opt_30b();
  r.has_device = false;
  r.device_bytes = 0;
  r.host_bytes = 40 * kGiB;
  r.kv_bytes = kGiB;
  r.disk_bytes = 100 * kGiB;
  const Plan plan = fill_from_the_top(r);
  EXPECT_EQ(plan.weights.device, 0);
  EXPECT_GT(plan.weights.host, 0.55);
  EXPECT_GT(plan.weights.disk, 0.3);
  r.host_bytes = 200 * kGiB;
  EXPECT_TRUE(fill_from_the_top(r).all_on_device());
}

TEST(FillTest, SaysWhatIsMissing) {
  FillRequest r = opt_30b();
  r.device_bytes = 3 * kGiB;
  try {
    fill_from_the_top(r);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), testing::HasSubstr("3.00 GiB of GPU memory"));
  }
}

}  // namespace
}  // namespace spillway
