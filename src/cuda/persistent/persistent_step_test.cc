// SPDX-License-Identifier: Apache-2.0
// Tests, on the host, which ops the persistent step takes and which it leaves to other kernels.
// Tests of whole networks check what it computes (tests/generation/cuda_test.cc, tests/placement).
#include "cuda/persistent/persistent_step.h"

#include <gtest/gtest.h>

#include <array>

namespace spillway::cuda {
namespace {

// Buffers whose contents are never read.
alignas(256) std::array<std::byte, 4096> memory;
std::byte* place(int i) { return memory.data() + 256 * i; }
const float* floats(int i) { return reinterpret_cast<const float*>(place(i)); }

Activations row(DType type, int64_t cols, int i) { return {type, 1, cols, cols, place(i)}; }

enum : int { kX, kNormed, kRows, kAttended, kMlp, kWeights, kNorm };

DeferredNorm norm_of(int from, int to) {
  return {NormKind::kRms,
          row(DType::kF32, 512, from),
          row(DType::kF16, 512, to),
          floats(kNorm),
          nullptr,
          1e-5F};
}
LinearCall linear(int from, int to, DType to_type = DType::kF16,
                  Epilogue epilogue = Epilogue::kStore) {
  LinearCall call;
  call.parts[0] = {{DType::kF16, 512, 512, place(kWeights)}, nullptr, row(to_type, 512, to)};
  call.x = row(DType::kF16, 512, from);
  call.epilogue = epilogue;
  return call;
}
LinearCall add_to_x(int from) { return linear(from, kX, DType::kF32, Epilogue::kAccumulate); }

AttentionCall attention() {
  AttentionCall call;
  call.q = row(DType::kF16, 256, kAttended);
  call.out = row(DType::kF16, 256, kMlp);
  call.kv.kv_heads = 2;
  call.kv.head_dim = 64;
  call.batch.sequences = 1;
  call.params.heads = 4;
  return call;
}

TEST(PersistentStepTest, NormsArePartOfTheOpThatReadsThem) {
  PersistentStep step{GpuShape()};
  ASSERT_TRUE(step.defer_norm(norm_of(kX, kNormed)));
  EXPECT_TRUE(step.empty());
  ASSERT_TRUE(step.add_linear(linear(kNormed, kMlp)));
  ASSERT_TRUE(step.add_linear(add_to_x(kMlp)));
  EXPECT_FALSE(step.empty());
  const PersistentStep::Deferred left = step.take_deferred(/*step_ends=*/true);
  EXPECT_FALSE(left.norm || left.copy);
}

TEST(PersistentStepTest, UnreadResultsAreComputedAfterAll) {
  PersistentStep step{GpuShape()};
  ASSERT_TRUE(step.defer_copy({row(DType::kF32, 512, kX), row(DType::kF32, 512, kRows)}));
  ASSERT_TRUE(step.defer_norm(norm_of(kRows, kNormed)));
  const PersistentStep::Deferred left = step.take_deferred(/*step_ends=*/true);
  EXPECT_FALSE(left.copy);  // the norm reads its source
  ASSERT_TRUE(left.norm);
  EXPECT_EQ(left.norm->x.data, place(kX));
  EXPECT_FALSE(step.take_deferred(true).norm);
}

// In the middle of a step another op may still need a result that a phase has read.
TEST(PersistentStepTest, WhatWasReadIsComputedForOthersToo) {
  PersistentStep step{GpuShape()};
  ASSERT_TRUE(step.defer_norm(norm_of(kX, kNormed)));
  ASSERT_TRUE(step.add_linear(linear(kNormed, kMlp)));
  EXPECT_TRUE(step.take_deferred(/*step_ends=*/false).norm);
}

TEST(PersistentStepTest, TakesNothingThatWouldSpoilWhatIsDeferred) {
  PersistentStep step{GpuShape()};
  ASSERT_TRUE(step.defer_norm(norm_of(kX, kNormed)));
  EXPECT_FALSE(step.add_linear(add_to_x(kAttended)));
  EXPECT_FALSE(step.add_linear(linear(kAttended, kNormed)));
  EXPECT_FALSE(step.defer_norm(norm_of(kAttended, kMlp)));
  EXPECT_TRUE(step.empty());
  // Once x has changed, the norm of its old value can no longer be computed.
  ASSERT_TRUE(step.add_linear(linear(kNormed, kMlp)));
  EXPECT_FALSE(step.add_linear(add_to_x(kNormed)));  // it would read what it writes
  ASSERT_TRUE(step.add_linear(add_to_x(kMlp)));
  EXPECT_THROW(step.add_linear(linear(kNormed, kMlp)), Error);
}

TEST(PersistentStepTest, LeavesToOthersWhatItCannotDo) {
  PersistentStep step{GpuShape()};
  LinearCall call = linear(kAttended, kMlp);
  call.parts[0].w.dtype = DType::kQ4_0;  // in the layout of the file, not packed
  EXPECT_FALSE(step.add_linear(call));
  call.parts[0].w.dtype = DType::kQ5_1;
  call.parts[0].w.layout = WeightLayout::kGroups16;
  EXPECT_FALSE(step.add_linear(call));
  call = linear(kAttended, kMlp);
  call.x.rows = call.parts[0].out.rows = 2;
  EXPECT_FALSE(step.add_linear(call));
  call = linear(kAttended, kMlp);
  call.x.dtype = DType::kF32;
  EXPECT_FALSE(step.add_linear(call));
  call = linear(kAttended, kMlp);
  call.parts[0].w.data += 8;
  EXPECT_FALSE(step.add_linear(call));
  call = linear(kAttended, kMlp);
  call.parts[0].w.cols = call.x.cols = 100'000;  // more than shared memory holds
  EXPECT_FALSE(step.add_linear(call));
  EXPECT_TRUE(step.empty());
  ASSERT_TRUE(step.add_linear(linear(kAttended, kMlp)));
  call = linear(kAttended, kMlp);
  call.x.dtype = call.parts[0].w.dtype = DType::kBF16;  // a launch has activations of one type
  EXPECT_FALSE(step.add_linear(call));
}

LinearCall packed(DType type) {
  LinearCall call = linear(kAttended, kMlp);
  call.parts[0].w.dtype = type;
  call.parts[0].w.layout = WeightLayout::kGroups16;
  return call;
}

TEST(PersistentStepTest, PackedWeightsHaveF16Values) {
  PersistentStep step{GpuShape()};
  AttentionCall attends = attention();
  ASSERT_TRUE(step.add_attention(attends));
  ASSERT_TRUE(step.add_linear(packed(DType::kQ4_0)));
  ASSERT_TRUE(step.add_attention(attends));
  EXPECT_FALSE(step.add_linear(linear(kAttended, kMlp)));  // a launch has one kind of weights
  EXPECT_FALSE(step.add_linear(packed(DType::kQ4_K)));
  attends.q.dtype = attends.out.dtype = DType::kBF16;
  EXPECT_FALSE(step.add_attention(attends));
  LinearCall odd = packed(DType::kQ4_0);
  odd.parts[0].w.rows = odd.parts[0].out.cols = 500;  // the last group is not packed
  EXPECT_FALSE(step.add_linear(odd));
}

// Files of mixed types have Q6_K beside another K-quant type.
TEST(PersistentStepTest, TwoTypesShareALaunchWhereFilesMixThem) {
  for (const DType main : {DType::kQ4_K, DType::kQ5_K}) {
    PersistentStep step{GpuShape()};
    ASSERT_TRUE(step.add_linear(packed(main)));
    ASSERT_TRUE(step.add_linear(packed(DType::kQ6_K)));
    ASSERT_TRUE(step.add_linear(packed(main)));
    EXPECT_FALSE(step.add_linear(packed(DType::kQ4_0)));
    PersistentStep other{GpuShape()};
    ASSERT_TRUE(other.add_linear(packed(DType::kQ6_K)));
    ASSERT_TRUE(other.add_linear(packed(main)));
  }
  PersistentStep step{GpuShape()};
  ASSERT_TRUE(step.add_linear(packed(DType::kQ4_K)));
  EXPECT_FALSE(step.add_linear(packed(DType::kQ5_K)));
}

TEST(PersistentStepTest, AppendsOfTwoTypesAreTwoPhasesOrNone) {
  LinearCall call;
  for (LinearPart& part : call.parts) {
    part = {{DType::kQ4_K, 128, 512, place(kWeights)}, nullptr, row(DType::kF16, 128, kMlp)};
    part.w.layout = WeightLayout::kGroups16;
  }
  call.parts[2].w.dtype = DType::kQ6_K;
  call.count = 3;
  call.x = row(DType::kF16, 512, kAttended);
  AppendCall append;
  append.kv.kv_heads = 2;
  append.kv.head_dim = 64;
  append.batch.sequences = 1;
  // Each append takes two phases: after an odd number of phases the last append does not fit, and
  // adds none.
  PersistentStep step{GpuShape()};
  LinearCall one = call;
  one.count = 1;
  one.parts[0].out = row(DType::kF16, 128, kMlp);
  ASSERT_TRUE(step.add_linear(one));
  for (int i = 1; i + 2 <= kStepPhases; i += 2) ASSERT_TRUE(step.add_append(call, append));
  EXPECT_FALSE(step.add_append(call, append));
  EXPECT_TRUE(step.add_linear(one));
  EXPECT_FALSE(step.add_linear(one));
  call.parts[1].w.dtype = DType::kQ5_K;  // three types
  EXPECT_FALSE(PersistentStep{GpuShape()}.add_append(call, append));
}

// The rows of a 70B model's down projection are this long.
TEST(PersistentStepTest, LongPackedRowsFit) {
  LinearCall call = linear(kAttended, kMlp);
  call.parts[0].w.layout = WeightLayout::kGroups16;
  call.parts[0].w.cols = call.x.cols = 28'672;
  for (const DType type : {DType::kQ4_0, DType::kQ4_K, DType::kG4, DType::kQ8_0}) {
    call.parts[0].w.dtype = type;
    EXPECT_TRUE(PersistentStep{GpuShape()}.add_linear(call)) << dtype_name(type);
  }
}

TEST(PersistentStepTest, AttendsOverF16KvOfTheSizesItKnows) {
  const AttentionCall call = attention();
  EXPECT_TRUE(PersistentStep{GpuShape()}.add_attention(call));
  AttentionCall other = call;
  other.kv.type = KvType::kInt8;
  EXPECT_FALSE(PersistentStep{GpuShape()}.add_attention(other));
  other = call;
  other.kv.head_dim = 80;
  EXPECT_FALSE(PersistentStep{GpuShape()}.add_attention(other));
  other = call;
  other.params.top_k = 0.1F;
  EXPECT_FALSE(PersistentStep{GpuShape()}.add_attention(other));
  other = call;
  other.batch.sequences = 2;
  EXPECT_FALSE(PersistentStep{GpuShape()}.add_attention(other));
}

// All attention phases of a launch share their parameters.
TEST(PersistentStepTest, LayersThatDifferDoNotShareALaunch) {
  AttentionCall call = attention();
  call.params.window = 100;
  PersistentStep step{GpuShape()};
  ASSERT_TRUE(step.add_attention(call));
  ASSERT_TRUE(step.add_attention(call));
  call.params.window = 0;
  EXPECT_FALSE(step.add_attention(call));
}

TEST(PersistentStepTest, IsFullAtSomeTime) {
  PersistentStep step{GpuShape()};
  for (int i = 0; i < kStepPhases; ++i) ASSERT_TRUE(step.add_linear(linear(kAttended, kMlp)));
  EXPECT_FALSE(step.add_linear(linear(kAttended, kMlp)));
}

TEST(PersistentStepTest, ServesFromHopperOn) {
  GpuShape gpu;
  const auto serves = [&](DType type) { return PersistentStep::serves(gpu, type); };
  EXPECT_TRUE(serves(DType::kF16) && serves(DType::kQ4_K));
  EXPECT_FALSE(serves(DType::kF32) || serves(DType::kQ2_K));
  WeightTypes mixed = DType::kQ6_K;
  ASSERT_TRUE(mixed.try_add(DType::kQ4_K));
  EXPECT_TRUE(PersistentStep::serves(gpu, mixed));
  mixed = DType::kQ6_K;
  ASSERT_TRUE(mixed.try_add(DType::kQ4_0));
  EXPECT_FALSE(PersistentStep::serves(gpu, mixed));
  gpu.compute_capability = 89;
  EXPECT_FALSE(serves(DType::kF16) || serves(DType::kQ4_K));
  gpu.compute_capability = 120;
  gpu.shared_bytes = 99 << 10;
  EXPECT_FALSE(serves(DType::kF16) || serves(DType::kQ4_K));
}

}  // namespace
}  // namespace spillway::cuda
