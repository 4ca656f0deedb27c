// SPDX-License-Identifier: Apache-2.0
#include "cuda/kv/kv_append.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/attention/attention_test_data.h"
#include "cuda/cuda_handles.h"
#include "device/kv_fault.h"

namespace spillway::cuda {
namespace {

struct AppendCase {
  KvType kv_type;
  DType dtype;
  int head_dim;
  int rope_dims;  // 0: no RoPE
  RopeStyle style = RopeStyle::kHalves;
  std::vector<float> wrong = {};  // put into keys and values of row 9, in this order
};

void rotate(std::vector<float>& x, const float* angles, int dims, RopeStyle style) {
  const int pairs = dims / 2;
  for (int i = 0; i < pairs; ++i) {
    float& a = x[static_cast<size_t>(style == RopeStyle::kInterleaved ? 2 * i : i)];
    float& b = x[static_cast<size_t>(style == RopeStyle::kInterleaved ? 2 * i + 1 : i + pairs)];
    const float u = a, w = b;
    a = u * angles[2 * i] - w * angles[2 * i + 1];
    b = u * angles[2 * i + 1] + w * angles[2 * i];
  }
}

// Checks that planes and queries on the GPU are, byte for byte, what the reference functions make
// of the same rows.
void check(const AppendCase& c) {
  constexpr int kHeads = 5, kKvHeads = 3, kBlocks = 12, kRows = 41;
  const std::vector<int32_t> first{1, 2, 25}, count{1, 23, 14},
      start{37, 0, 15};  // rows 0, 39, 40 belong to no sequence
  const std::vector<int32_t> table{7, 2, 11, -1, 4, 9, -1, -1, 0, 3, -1, -1};
  const KvPageLayout layout(c.kv_type, c.head_dim);
  std::mt19937 generator(3);
  std::normal_distribution<float> normal(0, 2);
  const int64_t stride = (kHeads + 2 * kKvHeads) * c.head_dim + 8;
  const int size = c.dtype == DType::kF32 ? 4 : 2;
  std::vector<std::byte> rows(static_cast<size_t>(kRows * stride * size));
  for (int64_t i = 0; i < kRows * stride; ++i)
    put_element(rows.data(), c.dtype, i, generator() % 64 == 0 ? 0 : normal(generator));
  // One head has zeros of both signs, and one has equal elements.
  for (int d = 0; d < c.head_dim; ++d) {
    put_element(rows.data(), c.dtype, 3 * stride + kHeads * c.head_dim + d,
                d % 3 == 1 ? -0.0F : 0.0F);
    put_element(rows.data(), c.dtype, 3 * stride + (kHeads + kKvHeads) * c.head_dim + d, 1.7F);
  }
  for (size_t i = 0; i < c.wrong.size(); ++i) {
    // Puts one at every third element, so that some are in each head.
    put_element(rows.data(), c.dtype,
                9 * stride + kHeads * c.head_dim + 3 * static_cast<int64_t>(i), c.wrong[i]);
  }
  std::vector<float> angles(static_cast<size_t>(kRows * c.rope_dims));
  for (size_t i = 0; i < angles.size(); i += 2) {
    const float angle = normal(generator);
    angles[i] = std::cos(angle);
    angles[i + 1] = std::sin(angle);
  }
  std::vector<std::byte> k(static_cast<size_t>(kBlocks * kKvHeads * layout.bytes), std::byte{0x5a}),
      v = k;

  const GuardedBuffer rows_gpu(rows), k_gpu(k), v_gpu(v), angles_gpu = GuardedBuffer::of(angles);
  const GuardedBuffer first_gpu = GuardedBuffer::of(first), count_gpu = GuardedBuffer::of(count),
                      start_gpu = GuardedBuffer::of(start), table_gpu = GuardedBuffer::of(table);
  const auto ints = [](const GuardedBuffer& b) {
    return reinterpret_cast<const int32_t*>(b.get());
  };
  const Activations all{c.dtype, kRows, stride, stride, rows_gpu.get()};
  AppendCall call;
  call.q = all.columns(0, kHeads * c.head_dim);
  call.k = all.columns(kHeads * c.head_dim, kKvHeads * c.head_dim);
  call.v = all.columns((kHeads + kKvHeads) * c.head_dim, kKvHeads * c.head_dim);
  if (c.rope_dims > 0) {
    call.angles = reinterpret_cast<const float*>(angles_gpu.get());
    call.angles_stride = c.rope_dims;
    call.rope_dims = c.rope_dims;
    call.style = c.style;
  }
  call.kv = {c.kv_type, kBlocks, kKvHeads, c.head_dim, k_gpu.get(), v_gpu.get()};
  call.kv.layer = 11;
  call.batch = {3, ints(first_gpu), ints(count_gpu), ints(start_gpu), ints(table_gpu), 4};
  const PinnedMemory faults = make_pinned(sizeof(uint32_t));
  call.faults = static_cast<uint32_t*>(faults.get());
  *call.faults = 0;
  rope_and_append(call, nullptr);
  std::vector<uint32_t> expected_faults;

  std::vector<float> x(static_cast<size_t>(c.head_dim));
  for (size_t s = 0; s < first.size(); ++s) {
    for (int r = 0; r < count[s]; ++r) {
      const int64_t row = first[s] + r;
      const int position = start[s] + r;
      const int64_t block = table[s * 4 + static_cast<size_t>(position / kKvBlockTokens)];
      for (int h = 0; h < kHeads + 2 * kKvHeads; ++h) {
        const int64_t at = row * stride + h * c.head_dim;
        const bool value = h >= kHeads + kKvHeads;
        const KvPart part = value ? KvPart::kValues : KvPart::kKeys;
        for (int d = 0; d < c.head_dim; ++d) {
          float& e = x[static_cast<size_t>(d)];
          e = get_element(rows.data(), c.dtype, at + d);
          if (c.dtype != DType::kF16 || std::fabs(e) < 65504) continue;
          if (std::isfinite(e)) expected_faults.push_back(KvFault{11, part, true}.word());
          e = NAN;
        }
        if (!value) rotate(x, angles.data() + row * c.rope_dims, c.rope_dims, c.style);
        if (h < kHeads) {
          for (int d = 0; d < c.rope_dims; ++d)
            put_element(rows.data(), c.dtype, at + d, x[static_cast<size_t>(d)]);
        } else {
          std::byte* page =
              (value ? v : k).data() + (block * kKvHeads + (h - kHeads) % kKvHeads) * layout.bytes;
          const KvStored how =
              store_kv_reference(layout, part, x.data(), page, position % kKvBlockTokens);
          if (how == KvStored::kBeyondRange)
            expected_faults.push_back(KvFault{11, part, false}.word());
        }
      }
    }
  }
  EXPECT_EQ(rows_gpu.read(), rows) << "queries";
  EXPECT_EQ(k_gpu.read(), k) << "keys";
  EXPECT_EQ(v_gpu.read(), v) << "values";
  if (expected_faults.empty()) expected_faults.push_back(0);
  EXPECT_NE(std::find(expected_faults.begin(), expected_faults.end(), *call.faults),
            expected_faults.end())
      << "fault " << *call.faults;
}

TEST(CudaKvAppendTest, StoresWhatTheReferenceStores) {
  if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU";
  for (const KvType type : kAllKvTypes) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const int dim : {64, 80, 96, 128, 256, 8, 72}) {
        SCOPED_TRACE(testing::Message() << kv_type_name(type) << " from " << dtype_name(dtype)
                                        << ", head dim " << dim);
        check({type, dtype, dim, dim});
        check({type, dtype, dim, dim, RopeStyle::kInterleaved});
        check({type, dtype, dim, 0});
        check({type, dtype, dim, dim / 4 * 2});
      }
    }
  }
}

TEST(CudaKvAppendTest, StoresAndReportsWhatDoesNotFitAsTheReferenceDoes) {
  if (!has_gpu()) GTEST_SKIP() << "no NVIDIA GPU";
  const float infinity = std::numeric_limits<float>::infinity(), nan = NAN;
  for (const KvType type : kAllKvTypes) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const int dim : {64, 80, 128}) {
        // Checks each number alone, and enough of them for all heads of keys and values.
        for (const float wrong :
             {nan, infinity, -infinity, 65504.0F, -65519.0F, 65520.0F, 1e6F, -1e9F, 3e38F}) {
          SCOPED_TRACE(testing::Message() << kv_type_name(type) << " from " << dtype_name(dtype)
                                          << ", head dim " << dim << ": " << wrong);
          check({type, dtype, dim, dim, RopeStyle::kHalves, {wrong}});
          check({type, dtype, dim, 0, RopeStyle::kHalves,
                 std::vector<float>(static_cast<size_t>(2 * dim), wrong)});
        }
      }
    }
  }
}

}  // namespace
}  // namespace spillway::cuda
