// SPDX-License-Identifier: Apache-2.0
// Tests replayed steps whose KV has moved since they were recorded: they read and write KV where
// the step's batch says, and nothing is recorded again.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/attention/attention_test_data.h"
#include "cuda/cuda.h"
#include "cuda/cuda_ops.h"

namespace spillway::cuda {
namespace {

struct MovedKvCase {
  const char* name;
  KvType kv = KvType::kF16;
  DType values = DType::kF16;  // weights, and activations with them
  int heads = 4, kv_heads = 2, head_dim = 64;
  int sequences = 3;
  float top_k = 0;
  bool persistent = false;  // where the GPU supports it
  bool deterministic = false;
};
void PrintTo(const MovedKvCase& c, std::ostream* out) { *out << c.name; }

constexpr int kLayers = 4, kLayer = 2, kColumns = 256, kBlocksEach = 24;
constexpr int kStart = 300;  // rows have two KV partitions; the KV before this position is zero
constexpr int kSteps = 40;   // crosses block boundaries

class MovedKvTest : public testing::TestWithParam<MovedKvCase> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
    device_ = make_cuda_device({});
    device_->ops().set_deterministic(c_.deterministic);
    layout_.type = c_.kv;
    layout_.blocks = c_.sequences * kBlocksEach;
    layout_.kv_heads = c_.kv_heads;
    layout_.head_dim = c_.head_dim;
    layout_.layer = kLayer;
    plane_bytes_ = static_cast<size_t>(layout_.blocks * layout_.block_bytes());
    for (auto& planes : planes_) {
      for (Buffer& plane : planes) {
        plane = device_->allocate(plane_bytes_, MemoryTag::kKv);
        fill(plane, std::byte{0});
      }
    }
    const int rows[] = {q_dim(), kv_dim(), kv_dim()};
    for (int i = 0; i < 3; ++i) {
      const std::vector<std::byte> values = random_elements(rows[i]);
      weights_[i] = device_->allocate(values.size(), MemoryTag::kWeights);
      device_->copy_to_device(weights_[i].data(), values.data(), values.size());
    }
    x_ = device_->allocate(element_bytes(c_.sequences * kColumns), MemoryTag::kActivations);
    qkv_ = device_->allocate(element_bytes(c_.sequences * (q_dim() + 2 * kv_dim())),
                             MemoryTag::kActivations);
    out_ = device_->allocate(element_bytes(c_.sequences * q_dim()), MemoryTag::kActivations);
    angles_ = device_->allocate(static_cast<size_t>(c_.sequences * c_.head_dim) * sizeof(float),
                                MemoryTag::kActivations);
    // The blocks of the sequences alternate.
    tables_.resize(static_cast<size_t>(c_.sequences));
    for (int i = 0; i < kBlocksEach; ++i)
      for (int s = 0; s < c_.sequences; ++s)
        tables_[static_cast<size_t>(s)].push_back(i * c_.sequences + s);
    for (int i = 0; i < c_.head_dim / 2; ++i)
      frequencies_.push_back(1.0F / static_cast<float>(1 + i));
  }

  int q_dim() const { return c_.heads * c_.head_dim; }
  int kv_dim() const { return c_.kv_heads * c_.head_dim; }
  size_t element_bytes(int elements) const {
    return static_cast<size_t>(row_bytes(c_.values, elements));
  }
  std::vector<std::byte> random_elements(int rows) {
    std::vector<std::byte> values(element_bytes(rows * kColumns));
    for (int64_t i = 0; i < int64_t{rows} * kColumns; ++i)
      put_element(values.data(), c_.values, i, std::normal_distribution<float>(0, 0.1F)(random_));
    return values;
  }
  std::vector<std::byte> read(const Buffer& buffer) {
    std::vector<std::byte> bytes(buffer.bytes());
    device_->copy_to_host(bytes.data(), buffer.data(), bytes.size());
    return bytes;
  }
  void fill(Buffer& buffer, std::byte value) {
    const std::vector<std::byte> bytes(buffer.bytes(), value);
    device_->copy_to_device(buffer.data(), bytes.data(), bytes.size());
  }
  // Moves all bytes of a plane to another one and leaves NaN behind.
  void move(Buffer& from, Buffer& to) {
    const std::vector<std::byte> bytes = read(from);
    device_->copy_to_device(to.data(), bytes.data(), bytes.size());
    fill(from, std::byte{0xff});
  }

  // Projects x_, appends at `position` of every sequence, and attends. Returns the attention
  // output.
  std::vector<std::byte> step(int where, int position, uint64_t graph_key, bool cut) {
    const auto count = static_cast<size_t>(c_.sequences);
    const std::vector<int32_t> ids(count), positions(count, position);
    std::vector<SequenceSpan> spans;
    std::vector<int32_t> logit_rows;
    for (int32_t i = 0; i < c_.sequences; ++i) {
      spans.push_back({i, 1, position, tables_[static_cast<size_t>(i)], {}, /*generates=*/true});
      logit_rows.push_back(i);
    }
    KvLayerView kv = layout_;
    kv.k = planes_[where][0].data();
    kv.v = planes_[where][1].data();
    std::vector<KvPlanes> said(kLayers);
    said[kLayer] = {kv.k, kv.v};
    StepBatch batch;
    batch.ids = ids;
    batch.positions = positions;
    batch.logit_rows = logit_rows;
    batch.spans = spans;
    batch.graph_key = graph_key;
    if (c_.persistent) batch.layer_types = c_.values;
    if (graph_key != 0) batch.kv = said;

    const auto rows = [&](const Buffer& of, int64_t columns, int64_t stride, int64_t first = 0) {
      return Activations{c_.values, c_.sequences, columns, stride,
                         of.data() + row_bytes(c_.values, first)};
    };
    const int64_t stride = q_dim() + 2 * kv_dim();
    const auto projection = [&](int i, int64_t n, int64_t first) {
      return Projection{
          {c_.values, n, kColumns, weights_[i].data()}, {}, rows(qkv_, n, stride, first)};
    };
    const Projection q = projection(0, q_dim(), 0), k = projection(1, kv_dim(), q_dim()),
                     v = projection(2, kv_dim(), q_dim() + kv_dim());
    const Activations angles{DType::kF32, c_.sequences, c_.head_dim, c_.head_dim, angles_.data()};
    Ops& ops = device_->ops();
    const auto project = [&] {
      ops.rope_angles(positions, frequencies_, 1.0F, angles);
      ops.project_and_append(q, k, v, rows(x_, kColumns, kColumns), angles, RopeStyle::kHalves, kv,
                             spans);
    };
    const auto attend = [&] {
      ops.attention(q.out, kv, spans, {c_.heads, 0.3F, 0, c_.top_k}, rows(out_, q_dim(), q_dim()));
    };
    const StepPart whole[] = {{{}, [&] { project(), attend(); }}};
    const StepPart parts[] = {{{}, project}, {[&] { ++between_; }, attend}};
    if (cut) {
      ops.run_step(batch, parts);
    } else {
      ops.run_step(batch, whole);
    }
    return read(out_);
  }

  const MovedKvCase c_ = GetParam();
  std::mt19937 random_{5};
  std::unique_ptr<Device> device_;
  KvLayerView layout_;
  size_t plane_bytes_ = 0;
  Buffer planes_[3][2];  // two places for the KV that moves, and a third for KV that does not move
  Buffer weights_[3], x_, qkv_, out_, angles_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<float> frequencies_;
  int between_ = 0;
};

TEST_P(MovedKvTest, IsFoundByRecordedSteps) {
  auto& ops = dynamic_cast<CudaOps&>(device_->ops());
  int position = kStart, where = 0;
  for (const bool cut : {false, true}) {
    SCOPED_TRACE(cut ? "in two parts" : "in one part");
    const int64_t recordings = ops.recordings(), replays = ops.replays();
    for (int i = 0; i < kSteps; ++i, ++position) {
      const std::vector<std::byte> x = random_elements(c_.sequences);
      device_->copy_to_device(x_.data(), x.data(), x.size());
      for (int plane = 0; plane < 2; ++plane)
        move(planes_[where][plane], planes_[1 - where][plane]);
      where = 1 - where;
      const auto found = step(where, position, cut ? 8 : 7, cut);
      ASSERT_EQ(found, step(2, position, 0, false)) << "step " << i;
      for (int plane = 0; plane < 2; ++plane)
        ASSERT_EQ(read(planes_[where][plane]), read(planes_[2][plane])) << "step " << i;
    }
    EXPECT_EQ(ops.recordings() - recordings, 1);
    // One step is only computed and one recorded. Growing memory may invalidate up to two before
    // them.
    EXPECT_GE(ops.replays() - replays, kSteps - 4);
  }
  EXPECT_EQ(between_, kSteps) << "also in steps that are replayed";
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, MovedKvTest,
    testing::Values(
        MovedKvCase{.name = "F16"}, MovedKvCase{.name = "F16OneQuery", .heads = 2},
        MovedKvCase{.name = "F16Dim128", .head_dim = 128},
        MovedKvCase{.name = "Bf16", .kv = KvType::kBf16, .values = DType::kBF16},
        MovedKvCase{.name = "Int8", .kv = KvType::kInt8},
        MovedKvCase{.name = "Int4", .kv = KvType::kInt4},
        MovedKvCase{.name = "F32", .kv = KvType::kF32, .values = DType::kF32},
        MovedKvCase{.name = "F16Rows", .values = DType::kF32},
        MovedKvCase{.name = "Sparse", .top_k = 0.25F},
        MovedKvCase{.name = "SparseInt8", .kv = KvType::kInt8, .top_k = 0.25F},
        MovedKvCase{.name = "Deterministic", .deterministic = true},
        MovedKvCase{.name = "OneToken", .sequences = 1},
        MovedKvCase{.name = "Persistent", .sequences = 1, .persistent = true},
        MovedKvCase{.name = "PersistentOneQuery", .heads = 2, .sequences = 1, .persistent = true},
        MovedKvCase{.name = "PersistentBf16",
                    .values = DType::kBF16,
                    .head_dim = 128,
                    .sequences = 1,
                    .persistent = true}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace spillway::cuda
