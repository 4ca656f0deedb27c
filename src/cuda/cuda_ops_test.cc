// SPDX-License-Identifier: Apache-2.0
// Tests which steps run as persistent kernels (persistent_step.h). Tests of whole networks check
// that they compute what other kernels compute, but would not notice if no step ran as one.
#include "cuda/cuda_ops.h"

#include <gtest/gtest.h>

#include <vector>

#include "cuda/cuda.h"
#include "cuda/dequantize/quant_test_data.h"

namespace spillway::cuda {
namespace {

constexpr int64_t kDim = 512;

class PersistentStepsTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU";
    device_ = make_cuda_device({});
    if (!PersistentStep::serves(current_gpu(), GetParam()))
      GTEST_SKIP() << "this GPU has no persistent step";
    const bool plain = GetParam() == DType::kF16;
    weights_ = device_->allocate(static_cast<size_t>(kDim * row_bytes(GetParam(), kDim)),
                                 MemoryTag::kWeights);
    view_ = {GetParam(), kDim, kDim, weights_.data()};
    view_.layout = plain ? WeightLayout::kRows : WeightLayout::kGroups16;
    for (Buffer& row : rows_) row = device_->allocate(kDim * 2, MemoryTag::kWorkspace);
  }

  // Returns the persistent launches of a step of two linear layers, the second reading the first's
  // output.
  uint64_t persistent_launches_of(int32_t tokens, uint64_t graph_key, WeightTypes layer_types) {
    auto& ops = dynamic_cast<CudaOps&>(device_->ops());
    const std::vector<int32_t> ids(static_cast<size_t>(tokens));
    StepBatch batch;
    batch.ids = batch.positions = ids;
    batch.graph_key = graph_key;
    batch.layer_types = layer_types;
    const uint64_t before = ops.persistent_launches();
    ops.run_step(batch, [&] {
      for (int i = 0; i < 2; ++i) {
        ops.linear(view_, {}, row(i), row(i + 1), LinearMode::kStore);
      }
    });
    device_->synchronize();
    return ops.persistent_launches() - before;
  }
  Activations row(int i) {
    return {DType::kF16, 1, kDim, kDim, rows_[static_cast<size_t>(i)].data()};
  }

  std::unique_ptr<Device> device_;
  Buffer weights_;
  WeightView view_;
  Buffer rows_[3];
};

TEST_P(PersistentStepsTest, OneTokenOfOneTypeIsOneLaunch) {
  EXPECT_EQ(persistent_launches_of(1, 7, GetParam()), 1U);
}

// Without a graph key something may have to happen between two ops, so each is a launch of its own.
TEST_P(PersistentStepsTest, WithoutAProgramEveryOpIs) {
  EXPECT_EQ(persistent_launches_of(1, 0, GetParam()), 2U);
}

TEST_P(PersistentStepsTest, OthersAreLaunchedOpByOp) {
  EXPECT_EQ(persistent_launches_of(1, 7, WeightTypes()), 0U);
  EXPECT_EQ(persistent_launches_of(2, 7, GetParam()), 0U);
  device_->ops().set_deterministic(true);
  EXPECT_EQ(persistent_launches_of(1, 7, GetParam()), 0U);
}

INSTANTIATE_TEST_SUITE_P(Types, PersistentStepsTest,
                         testing::Values(DType::kF16, DType::kQ4_0, DType::kQ4_K),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

}  // namespace
}  // namespace spillway::cuda
