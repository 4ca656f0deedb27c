// SPDX-License-Identifier: Apache-2.0
// Tests that rows which the CPU attends to beside a device have the same bits as if the host were
// the device.
#include "runtime/host_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/test_machine.h"

namespace spillway {
namespace {

constexpr int kHeads = 4;
constexpr KvGroupShape kShape{.layers = 2, .kv_heads = 2, .head_dim = 16, .type = KvType::kF16};
constexpr int64_t kQ = kHeads * 16, kKv = 2 * 16, kColumns = kQ + 2 * kKv;
constexpr int64_t kRows = 600;   // at most
constexpr int32_t kBlocks = 80;  // of the cache
constexpr AttentionParams kParams{.heads = kHeads, .scale = 0.25F};

struct Bits {
  DType type;
  bool overlap;
  uint64_t pinnable_bytes = ~uint64_t{0};
};

class HostAttentionTest : public testing::TestWithParam<Bits> {
 protected:
  HostAttentionTest()
      : machine_(/*has_accelerator=*/true, GetParam().pinnable_bytes),
        kv_(device(), host(), kShape, {.device_blocks = kBlocks, .host_blocks = kBlocks}),
        reference_kv_(host(), kShape, kBlocks),
        executor_(device()),
        stalls_(device()),
        attention_(*machine_.transfers, host(), executor_, GetParam().type, kRows, kQ, kKv,
                   GetParam().overlap) {
    std::iota(every_row_.begin(), every_row_.end(), 0);
  }

  Device& host() { return machine_.host; }
  Device& device() { return machine_.device(); }

  // Random rows in the device's type, and the same rows as floats, both in host memory.
  struct Rows {
    std::vector<std::byte> stored = {}, floats = {};
    int64_t count = 0, columns = 0;
    DType type = DType::kF32;
    Activations as_stored() { return {type, count, columns, columns, stored.data()}; }
    Activations as_floats() { return {DType::kF32, count, columns, columns, floats.data()}; }
  };
  Rows rows_of(int64_t count, int64_t columns) {
    Rows rows{.count = count, .columns = columns, .type = GetParam().type};
    rows.stored.resize(static_cast<size_t>(row_bytes(rows.type, count * columns)));
    rows.floats.resize(static_cast<size_t>(count * columns) * sizeof(float));
    return rows;
  }
  Rows random_rows(int64_t count) {
    Rows rows = rows_of(count, kColumns);
    std::uniform_real_distribution<float> values(-2, 2);
    for (int64_t i = 0; i < count * kColumns; ++i) rows.as_floats().f32()[i] = values(random_);
    convert(rows.as_floats(), rows.as_stored());
    convert(rows.as_stored(), rows.as_floats());
    return rows;
  }
  void convert(const Activations& from, const Activations& to) {
    host().ops().gather_rows(from, std::span(every_row_).first(static_cast<size_t>(from.rows)), to);
  }
  Activations on_device(const Activations& rows) {
    const auto bytes = static_cast<size_t>(row_bytes(rows.dtype, rows.rows * rows.cols));
    buffers_.push_back(device().allocate(bytes, MemoryTag::kActivations));
    device().copy_to_device(buffers_.back().data(), rows.data, bytes);
    Activations there = rows;
    there.data = buffers_.back().data();
    return there;
  }
  std::vector<std::byte> read(const Activations& x) {
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(x.dtype, x.rows * x.cols)));
    device().copy_to_host(bytes.data(), x.data, bytes.size());
    return bytes;
  }
  // Computes attention with the host as the device.
  std::vector<std::byte> attended_by_host(Rows& rows, const std::vector<SequenceSpan>& spans,
                                          int layer) {
    const Activations x = rows.as_floats();
    const KvLayerView kv = reference_kv_.layer(layer);
    host().ops().kv_append(x.columns(kQ, kKv), x.columns(kQ + kKv, kKv), kv, spans);
    Rows out = rows_of(rows.count, kQ);
    host().ops().attention(x.columns(0, kQ), kv, spans, kParams, out.as_floats());
    convert(out.as_floats(), out.as_stored());
    return out.stored;
  }

  TestMachine machine_;
  KvCache kv_, reference_kv_;
  CpuExecutor executor_;
  StallClock stalls_;
  HostAttention attention_;
  std::mt19937 random_{5};
  std::vector<int32_t> every_row_ = std::vector<int32_t>(kRows);
  std::vector<Buffer> buffers_;
};

std::vector<int32_t> blocks_from(int32_t first, int32_t count) {
  std::vector<int32_t> blocks(static_cast<size_t>(count));
  std::iota(blocks.rbegin(), blocks.rend(), first);  // no sequence of ids that could be guessed
  return blocks;
}

// Runs prompts of several sequences, then a token of each, in every layer.
TEST_P(HostAttentionTest, RowsHaveTheBitsOfTheHostsOwnOps) {
  const std::vector<int32_t> tables[] = {blocks_from(0, 3), blocks_from(3, 1), blocks_from(4, 5)};
  const int32_t lengths[] = {40, 1, 70};
  uint64_t to_host = 0, to_device = 0;
  for (int step = 0; step < 4; ++step) {
    HostRows rows;
    for (size_t s = 0; s < 3; ++s) {
      const int32_t start = step == 0 ? 0 : lengths[s] + step - 1;
      const int32_t count = step == 0 ? lengths[s] : 1;
      rows.spans.push_back({rows.rows, count, start, tables[s]});
      rows.rows += count;
    }
    rows.written = rows.spans;
    for (int layer = 0; layer < kShape.layers; ++layer) {
      Rows x = random_rows(rows.rows), nothing = rows_of(rows.rows, kQ);
      const Activations qkv = on_device(x.as_stored()), out = on_device(nothing.as_stored());
      attention_.start(qkv, kv_.host_layer(layer), rows, kParams, out, {}, nullptr);
      attention_.finish(stalls_);
      EXPECT_EQ(read(out), attended_by_host(x, rows.spans, layer)) << step << ", " << layer;
      to_host += x.stored.size();
      to_device += nothing.stored.size();
    }
  }
  executor_.synchronize();
  const HostAttention::Stats stats = attention_.take_stats();
  EXPECT_EQ(stats.to_host_bytes, to_host);
  EXPECT_EQ(stats.to_device_bytes, to_device);
  EXPECT_GT(stats.kv_bytes, 0U);
  EXPECT_GT(stats.compute_s, 0);
  EXPECT_EQ(attention_.take_stats().to_host_bytes, 0U);
}

// The first positions of one sequence are on the device, the last ones and the new rows are the
// host's. Another sequence is entirely the host's.
TEST_P(HostAttentionTest, PartsAreAddedToWhatTheDeviceHasSeen) {
  constexpr int32_t kPartBlocks = kPartitionTokens / kKvBlockTokens;
  const std::vector<int32_t> table = blocks_from(0, kPartBlocks + 3), other = blocks_from(30, 2);
  const auto all = std::span(table);
  const int32_t length = kPartitionTokens + 30;
  // Both caches have the whole sequence.
  Rows before = random_rows(length), other_before = random_rows(20);
  const SequenceSpan whole{0, length, 0, all}, whole_other{0, 20, 0, other};
  for (const KvLayerView& kv : {kv_.host_layer(0), reference_kv_.layer(0)}) {
    for (auto* const of : {&before, &other_before}) {
      const Activations x = of->as_floats();
      host().ops().kv_append(x.columns(kQ, kKv), x.columns(kQ + kKv, kKv), kv,
                             {of == &before ? &whole : &whole_other, 1});
    }
  }
  const KvLayerView on_device_kv = kv_.layer(0), at_home = kv_.host_layer(0);
  const auto plane = static_cast<size_t>(kBlocks * at_home.block_bytes());
  device().copy_to_device(on_device_kv.k, at_home.k, plane);
  device().copy_to_device(on_device_kv.v, at_home.v, plane);

  // Compute a new token of each sequence.
  Rows x = random_rows(2), nothing = rows_of(2, kQ);
  const std::vector<SequenceSpan> both{{0, 1, length, all}, {1, 1, 20, other}};
  const auto expected = attended_by_host(x, both, 0);
  const SequenceSpan first{0, 1, length, all.first(kPartBlocks)},
      last{0, 1, length - kPartitionTokens, all.subspan(kPartBlocks)};
  HostRows rows;
  rows.rows = 2;
  rows.shared_rows = 1;
  rows.shared = {last};
  rows.spans = {{1, 1, 20, other}};
  rows.written = {last, rows.spans.front()};

  const int64_t columns = softmax_state_columns(kHeads, kShape.head_dim);
  buffers_.push_back(device().allocate(static_cast<size_t>(columns) * 4, MemoryTag::kActivations));
  const SoftmaxState sums{
      {DType::kF32, 1, columns, columns, buffers_.back().data()}, kHeads, kShape.head_dim};
  // The emulated accelerator computes with floats.
  const Activations qkv = on_device(x.as_stored()), out = on_device(nothing.as_stored()),
                    q = on_device(x.as_floats()).row_range(0, 1).columns(0, kQ),
                    seen = on_device(nothing.as_floats()).row_range(0, 1);
  attention_.prepare_partitions(kHeads);
  device().partitioned_attention().clear_state(sums);
  attention_.start(qkv, at_home, rows, kParams, out, sums, nullptr);
  device().partitioned_attention().attend_partition(q, on_device_kv, {&first, 1}, kParams, sums);
  attention_.finish(stalls_);
  device().partitioned_attention().finish_state(sums, seen);
  executor_.synchronize();
  const auto found = read(out);
  const auto row = static_cast<ptrdiff_t>(row_bytes(GetParam().type, kQ));
  EXPECT_TRUE(std::equal(found.begin() + row, found.end(), expected.begin() + row))
      << "the row that is the host's alone";
  const auto bytes = read(seen);
  Rows wanted = rows_of(2, kQ);
  wanted.stored = expected;
  convert(wanted.as_stored(), wanted.as_floats());
  for (int64_t i = 0; i < kQ; ++i) {
    const float given = reinterpret_cast<const float*>(bytes.data())[i];
    EXPECT_NEAR(given, wanted.as_floats().f32()[i], 1e-3) << i;
  }
}

// A key beyond the range of the device's type is stored as NaN and reported.
TEST_P(HostAttentionTest, SaturatedKeysAreAFault) {
  const std::vector<int32_t> table = blocks_from(0, 1);
  HostRows rows;
  rows.rows = 2;
  rows.spans = rows.written = {{0, 2, 0, table}};
  Rows x = random_rows(2), nothing = rows_of(2, kQ);
  x.as_floats().f32(1)[kQ + 3] = 1e9F;
  convert(x.as_floats(), x.as_stored());
  const Activations qkv = on_device(x.as_stored()), out = on_device(nothing.as_stored());
  attention_.start(qkv, kv_.host_layer(1), rows, kParams, out, {}, nullptr);
  attention_.finish(stalls_);
  executor_.synchronize();
  if (GetParam().type == DType::kF32) {
    EXPECT_FALSE(attention_.fault().has_value()) << "the cache's type is the host's to look at";
    EXPECT_TRUE(host().ops().take_kv_fault().has_value());
    return;
  }
  ASSERT_TRUE(attention_.fault().has_value());
  EXPECT_EQ(attention_.fault()->layer, 1);
  EXPECT_EQ(attention_.fault()->part, KvPart::kKeys);
}

INSTANTIATE_TEST_SUITE_P(Machines, HostAttentionTest,
                         testing::Values(Bits{DType::kF32, true}, Bits{DType::kF32, false},
                                         Bits{DType::kF16, true}, Bits{DType::kF16, false},
                                         Bits{DType::kF16, true, 0}),
                         [](const auto& test) {
                           return std::string(dtype_name(test.param.type)) +
                                  (test.param.overlap ? "_overlap" : "_no_overlap") +
                                  (test.param.pinnable_bytes == 0 ? "_not_pinned" : "");
                         });

}  // namespace
}  // namespace spillway
