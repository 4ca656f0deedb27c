// SPDX-License-Identifier: Apache-2.0
#include "base/host_memory.h"

#include <gtest/gtest.h>

namespace spillway {
namespace {

TEST(HostMemoryTest, KnowsTotalAndAvailableMemory) {
  const HostMemory memory = host_memory();
  EXPECT_GT(memory.available_bytes, 0);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
  EXPECT_GT(memory.process_bytes, 0);
}

}  // namespace
}  // namespace spillway
