// SPDX-License-Identifier: Apache-2.0
#include "cuda/dequantize/dequantize.h"

#include <gtest/gtest.h>

#include <string>

#include "cuda/dequantize/quant_test_data.h"
#include "tensor/packed_layout.h"

namespace spillway::cuda {
namespace {

class CudaDequantizeTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
  }
  static std::vector<WeightLayout> layouts() {
    if (can_pack(GetParam())) return {WeightLayout::kRows, WeightLayout::kGroups16};
    return {WeightLayout::kRows};
  }
};

TEST_P(CudaDequantizeTest, RangesOfRowsBecomePlain) {
  const DType type = GetParam();
  if (!is_quantized(type)) GTEST_SKIP() << "plain already";
  constexpr int64_t kRows = 53, kCols = 1280, kStride = kCols + 16;
  for (const WeightLayout layout : layouts()) {
    const TestMatrix m = TestMatrix::make(type, kRows, kCols, layout, 5);
    for (const DType to : {DType::kF16, DType::kBF16, DType::kF32}) {
      for (const auto& [first, count] :
           {std::pair<int64_t, int64_t>{0, kRows}, {7, 1}, {11, 30}, {48, 5}}) {
        GuardedBytes out(static_cast<size_t>(row_bytes(to, count * kStride)));
        dequantize_rows(m.view, first, {to, count, kCols, kStride, out.data()}, nullptr);
        SPW_CUDA_CHECK(cudaDeviceSynchronize());
        EXPECT_TRUE(out.guards_are_whole());
        const std::vector<float> got = values_of(to, out.read());
        for (int64_t i = 0; i < count; ++i) {
          const float* want = m.values.data() + (first + i) * kCols;
          for (int64_t j = 0; j < kStride; ++j) {
            const float value = got[static_cast<size_t>(i * kStride + j)];
            if (j >= kCols) {
              ASSERT_TRUE(std::isnan(value));
              continue;
            }
            // One rounding to the target type, and the difference of one fused multiply-add.
            const float unit = to == DType::kBF16  ? 0x1p-8F
                               : to == DType::kF16 ? 0x1p-11F
                                                   : 0x1p-22F;
            ASSERT_NEAR(value, want[j], std::fabs(want[j]) * unit + 1e-7F)
                << "row " << first + i << ", column " << j;
          }
        }
      }
    }
  }
}

TEST_P(CudaDequantizeTest, RowsOfATableAreGathered) {
  const DType type = GetParam();
  constexpr int64_t kEntries = 53;
  const int64_t dim = is_quantized(type) ? 1280 : 331;  // plain rows may have any length
  const int64_t stride = dim + 5;
  const std::vector<int32_t> ids = {0, 52, 17, 17, 48, 31, 1};
  const auto count = static_cast<int64_t>(ids.size());
  const GuardedBytes ids_gpu(ids.data(), ids.size() * 4);
  for (const WeightLayout layout : layouts()) {
    const TestMatrix m = TestMatrix::make(type, kEntries, dim, layout, 6);
    for (const LinearMode mode : {LinearMode::kStore, LinearMode::kAccumulate}) {
      const std::vector<float> before = random_values(static_cast<size_t>(count * stride), 8);
      GuardedBytes out(before.data(), before.size() * 4);
      embed_rows(m.view, reinterpret_cast<const int32_t*>(ids_gpu.data()),
                 {DType::kF32, count, dim, stride, out.data()}, mode, nullptr);
      SPW_CUDA_CHECK(cudaDeviceSynchronize());
      EXPECT_TRUE(out.guards_are_whole());
      const std::vector<float> got = values_of(DType::kF32, out.read());
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < stride; ++j) {
          const auto at = static_cast<size_t>(i * stride + j);
          float want = before[at];
          if (j < dim) {
            const float value =
                m.values[static_cast<size_t>(ids[static_cast<size_t>(i)] * dim + j)];
            want = mode == LinearMode::kStore ? value : want + value;
          }
          ASSERT_NEAR(got[at], want, 1e-6F) << "id " << ids[static_cast<size_t>(i)] << ", " << j;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaDequantizeTest, testing::ValuesIn(kAllDTypes),
                         [](const auto& suite) { return std::string(dtype_name(suite.param)); });

}  // namespace
}  // namespace spillway::cuda
