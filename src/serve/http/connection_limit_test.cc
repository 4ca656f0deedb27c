// SPDX-License-Identifier: Apache-2.0
#include "serve/http/connection_limit.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(ConnectionLimitTest, EveryRequestThatIsTakenHasAConnection) {
  for (const size_t requests : {1, 320, 1024, 5000, 1 << 20})
    EXPECT_GT(connections_for(requests), requests);
  EXPECT_EQ(connections_for(1), connections_for(2)) << "small queues change nothing";
}

TEST(ConnectionLimitTest, OneAddressLeavesSomeForOthers) {
  EXPECT_EQ(connections_of_client(1024), 768U);
  EXPECT_EQ(connections_of_client(connections_for(3000)), 3000U) << "all that can be waiting";
  EXPECT_EQ(connections_of_client(8), 6U);
  EXPECT_EQ(connections_of_client(1), 1U);
}

TEST(ConnectionLimitTest, LeavesFilesForTheServerItself) {
  EXPECT_EQ(connections_within(1024, 65'536), 1024U);
  EXPECT_LT(connections_within(5000, 4096), 4096U);
  EXPECT_GT(connections_within(5000, 4096), 2048U);
  EXPECT_EQ(connections_within(5000, 64), 32U);
  EXPECT_EQ(connections_within(5000, 0), 1U);
}

}  // namespace
}  // namespace spillway
