// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernel/fast_divisor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace spillway::cuda {
namespace {

TEST(FastDivisorTest, DividesAsDivisionDoes) {
  std::mt19937 generator(1);
  const auto check = [](unsigned divisor, unsigned x) {
    unsigned rest = 0;
    const unsigned quotient = FastDivisor(static_cast<int>(divisor)).divide(x, rest);
    ASSERT_EQ(quotient, x / divisor) << x << " / " << divisor;
    ASSERT_EQ(rest, x % divisor) << x << " / " << divisor;
  };
  for (unsigned divisor = 1; divisor < 600; ++divisor) {
    for (unsigned near : {0U, divisor, 77 * divisor, 0x7fffffffU / divisor * divisor}) {
      check(divisor, near);
      if (near > 0) check(divisor, near - 1);
    }
    check(divisor, 0x7fffffffU);
  }
  for (int i = 0; i < 100000; ++i) {
    const auto any = static_cast<unsigned>(generator() >> 1);
    const unsigned divisor = std::max(1U, any >> generator() % 31);
    check(divisor, static_cast<unsigned>(generator() >> 1));
  }
}

}  // namespace
}  // namespace spillway::cuda
