// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/select_top.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace spillway {
namespace {

std::vector<int32_t> selected(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> positions(static_cast<size_t>(k) + 1, -7);
  std::vector<uint32_t> scratch(scores.size());
  cpu::select_top(scores.data(), static_cast<int64_t>(scores.size()), k, positions.data(),
                  scratch.data());
  EXPECT_EQ(positions.back(), -7);
  positions.pop_back();
  return positions;
}

// Computes the expected positions by sorting all scores.
std::vector<int32_t> expected(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(SelectTopTest, EqualsASortWhateverTheScores) {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal(0, 3);
  for (const int64_t n : {1, 2, 3, 16, 17, 100, 1000, 4099}) {
    for (const float step : {0.0F, 0.5F, 4.0F}) {  // rounded to multiples, so that many are equal
      std::vector<float> scores(static_cast<size_t>(n));
      for (float& score : scores) {
        score = normal(generator);
        if (step > 0) score = std::round(score / step) * step;
      }
      for (const int64_t k : {int64_t{1}, n / 10, n / 2, n - 1, n}) {
        if (k < 1) continue;
        EXPECT_EQ(selected(scores, k), expected(scores, k)) << n << " " << k;
      }
    }
  }
}

TEST(SelectTopTest, TakesTheFirstOfEqualScores) {
  EXPECT_EQ(selected(std::vector<float>(50, 1.5F), 3), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(selected({1, 2, 1, 2, 1, 2}, 4), (std::vector<int32_t>{0, 1, 3, 5}));
  EXPECT_EQ(selected({-0.0F, 0.0F, -0.0F, -1}, 2), (std::vector<int32_t>{0, 1}));
}

TEST(SelectTopTest, OrdersWhatIsNotANumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(selected({1, -kInfinity, kInfinity, 5}, 2), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(selected({1, std::nanf(""), kInfinity, -std::nanf("")}, 2),
            (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(selected({-kInfinity, -kInfinity, -3e38F}, 2), (std::vector<int32_t>{0, 2}));
}

}  // namespace
}  // namespace spillway
