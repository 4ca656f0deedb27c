// SPDX-License-Identifier: Apache-2.0
#include "plan/link_prices.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

using Source = Hardware::Source;

struct LinkPricesTest : testing::Test {
  Hardware hardware = read_hardware("ci");
  LinkPricesTest() {
    hardware.gpu = hardware.host;
    hardware.to_device = RateCurve({{1e3, 1e9}, {1e6, 10e9}});
    hardware.to_host = RateCurve({{1e3, 2e9}, {1e6, 8e9}});
    hardware.link_beside_cpu = 0.5;
    hardware.pageable_to_device = 4e9;
    hardware.transfer_s = 1e-5;
    hardware.meeting_s = 0;
    hardware.disk_read = 2e9;
    hardware.disk_write = 1e9;
    hardware.disk_access_s = 1e-4;
  }
  LinkPrices links{hardware};
};

TEST_F(LinkPricesTest, ATransferTakesItsFixedCostAndItsBytesAtTheRateOfItsSize) {
  EXPECT_DOUBLE_EQ(links.up(1e3, Source::kPinned, 1), 1e-5 + 1e-6);
  EXPECT_DOUBLE_EQ(links.up(1e6, Source::kPinned, 1), 1e-5 + 1e-4);
  EXPECT_DOUBLE_EQ(links.up(1e6, Source::kPinned, 0.5), 1e-5 + 2e-4);
  EXPECT_DOUBLE_EQ(links.up(1e6, Source::kPageable, 1), 1e-5 + 2.5e-4);
  EXPECT_DOUBLE_EQ(links.down(8e6, 1), 1e-5 + 1e-3);
  EXPECT_DOUBLE_EQ(links.disk_read(2e6), 1e-4 + 1e-3);
  EXPECT_DOUBLE_EQ(links.disk_write(2e6), 1e-4 + 2e-3);
}

TEST_F(LinkPricesTest, NothingTakesNoTime) {
  EXPECT_EQ(links.up(0, Source::kPinned, 1), 0);
  EXPECT_EQ(links.down(0, 1), 0);
  EXPECT_EQ(links.disk_read(0), 0);
  EXPECT_EQ(links.disk_write(0), 0);
}

// The linear program adds up parts of a stream, so each must take its proportion of the whole.
TEST_F(LinkPricesTest, AStreamIsProportionalToItsBytes) {
  EXPECT_DOUBLE_EQ(links.bulk_up(1e3, Source::kPinned), 1e3 / (0.5 * 10e9));
  EXPECT_DOUBLE_EQ(links.bulk_up(1e9, Source::kPinned), 1e9 / (0.5 * 10e9));
  EXPECT_DOUBLE_EQ(links.bulk_up(1e9, Source::kPageable), 1e9 / (0.5 * 4e9));
  EXPECT_DOUBLE_EQ(links.bulk_down(8e3), 1e-6);
  EXPECT_DOUBLE_EQ(links.bulk_disk_read(2e6), 1e-3);
  EXPECT_DOUBLE_EQ(links.bulk_disk_write(2e6), 2e-3);
  EXPECT_DOUBLE_EQ(links.up_beside_cpu(1e3, Source::kPinned), 1e3 / (0.5 * 1e9));
}

TEST_F(LinkPricesTest, HandingOverTakesTwoTransfersOrAMeasuredMeeting) {
  const double bytes_s = 4.0 * 3 * (100 / 8e9 + 50 / 10e9);
  EXPECT_DOUBLE_EQ(links.hand_over(3, 100, 50), 2e-5 + bytes_s);
  hardware.meeting_s = 5e-5;
  EXPECT_DOUBLE_EQ(links.hand_over(3, 100, 50), 5e-5 + bytes_s);
}

TEST_F(LinkPricesTest, ThereIsNoLinkWhereTheHostComputes) {
  EXPECT_EQ(links.most_up_per_s(), 10e9);
  EXPECT_EQ(links.most_down_per_s(), 8e9);
  hardware.gpu.reset();
  EXPECT_EQ(links.up(1e6, Source::kPinned, 1), 0);
  EXPECT_EQ(links.down(1e6, 1), 0);
  EXPECT_EQ(links.most_up_per_s(), 0);
  EXPECT_EQ(links.most_down_per_s(), 0);
}

// A machine's file may have no entry for a disk.
TEST_F(LinkPricesTest, ADiskThatWasNotMeasuredIsSlowButHasAPrice) {
  hardware.disk_read = hardware.disk_write = 0;
  EXPECT_DOUBLE_EQ(links.bulk_disk_read(1e3), 1e3);
  EXPECT_DOUBLE_EQ(links.disk_write(1e3), 1e-4 + 1e3);
}

}  // namespace
}  // namespace spillway
