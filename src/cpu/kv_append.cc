// SPDX-License-Identifier: Apache-2.0
#include "cpu/kv_append.h"

#include <cstring>

#include "base/error.h"
#include "cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kv_append.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

void store_f16(const float* x, uint16_t* out, int64_t count) {
  const FloatTag df;
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  const hn::Rebind<uint16_t, FloatTag> du;
  int64_t i = 0;
  if (kHalfFloats) {
    for (; i + kLanes <= count; i += kLanes) {
      hn::StoreU(hn::BitCast(du, hn::DemoteTo(dh, hn::LoadU(df, x + i))), du, out + i);
    }
  }
  for (; i < count; ++i) out[i] = to_half(x[i]).bits;
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(store_f16);

namespace cpu {
namespace {

void store_head(const KvLayerView& kv, std::byte* plane, int64_t slot, const float* x) {
  if (kv.dtype == DType::kF32) {
    std::memcpy(plane + slot * 4, x, static_cast<size_t>(kv.head_dim) * sizeof(float));
  } else {
    HWY_DYNAMIC_DISPATCH(store_f16)
    (x, reinterpret_cast<uint16_t*>(plane) + slot, kv.head_dim);
  }
}

}  // namespace

void check_spans(const KvLayerView& kv, std::span<const SequenceSpan> spans, int64_t rows) {
  SPW_ASSERT(kv.dtype == DType::kF32 || kv.dtype == DType::kF16);
  SPW_ASSERT(kv.kv_heads > 0 && kv.head_dim > 0);
  for (const SequenceSpan& span : spans) {
    SPW_ASSERT(span.first_row >= 0 && span.rows >= 0 && span.start >= 0);
    SPW_ASSERT(int64_t{span.first_row} + span.rows <= rows);
    const int64_t end = int64_t{span.start} + span.rows;
    SPW_ASSERT(static_cast<int64_t>(span.block_table.size()) * kKvBlockTokens >= end);
  }
}

void kv_append(ThreadPool& pool, const Activations& k, const Activations& v, const KvLayerView& kv,
               std::span<const SequenceSpan> spans) {
  const int64_t width = int64_t{kv.kv_heads} * kv.head_dim;
  SPW_ASSERT(k.dtype == DType::kF32 && v.dtype == DType::kF32);
  SPW_ASSERT(k.rows == v.rows && k.cols == width && v.cols == width);
  check_spans(kv, spans, k.rows);
  for (const SequenceSpan& span : spans) {
    for (int64_t page = span.start / kKvBlockTokens;
         page * kKvBlockTokens < int64_t{span.start} + span.rows; ++page) {
      const int32_t block = span.block_table[static_cast<size_t>(page)];
      SPW_ASSERT(block >= 0 && block < kv.blocks);
    }
    parallel_if_large(pool, span.rows * width, span.rows, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t position = span.start + i, row = span.first_row + i;
        const int64_t block = span.block_table[static_cast<size_t>(position / kKvBlockTokens)];
        for (int64_t head = 0; head < kv.kv_heads; ++head) {
          const int64_t slot =
              ((block * kv.kv_heads + head) * kKvBlockTokens + position % kKvBlockTokens) *
              kv.head_dim;
          store_head(kv, kv.k, slot, k.f32(row) + head * kv.head_dim);
          store_head(kv, kv.v, slot, v.f32(row) + head * kv.head_dim);
        }
      }
    });
  }
}

}  // namespace cpu
}  // namespace spillway
#endif
