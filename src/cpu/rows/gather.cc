// SPDX-License-Identifier: Apache-2.0
#include "cpu/rows/gather.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cpu/dequantize/decode_row.h"
#include "cpu/parallel.h"
#include "tensor/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rows/gather.cc"
#include <hwy/foreach_target.h>
// These must be included after foreach_target.
#include <hwy/highway.h>

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

// Converts to F16. As on GPUs, a number too large for F16 becomes the largest F16, not infinity.
void encode_f16(const float* x, uint16_t* out, int64_t count) {
  constexpr float kLargest = 65504.0F;
  const FloatTag df;
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  const hn::Rebind<uint16_t, FloatTag> du;
  int64_t i = 0;
  if (kHalfFloats) {
    for (; i + kLanes <= count; i += kLanes) {
      const auto value =
          hn::Min(hn::Max(hn::LoadU(df, x + i), hn::Set(df, -kLargest)), hn::Set(df, kLargest));
      hn::StoreU(hn::BitCast(du, hn::DemoteTo(dh, value)), du, out + i);
    }
  }
  for (; i < count; ++i) out[i] = to_half(std::min(std::max(x[i], -kLargest), kLargest)).bits;
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(encode_f16);

namespace cpu {
namespace {

void convert_row(DType from, const std::byte* x, DType to, std::byte* out, int64_t count) {
  if (from == to) {
    std::memcpy(out, x, static_cast<size_t>(row_bytes(from, count)));
  } else if (to == DType::kF32) {
    decode_row(from, x, reinterpret_cast<float*>(out), count);
  } else if (to == DType::kF16) {
    HWY_DYNAMIC_DISPATCH(encode_f16)
    (reinterpret_cast<const float*>(x), reinterpret_cast<uint16_t*>(out), count);
  } else {
    const auto* floats = reinterpret_cast<const float*>(x);
    auto* bits = reinterpret_cast<BFloat16*>(out);
    for (int64_t i = 0; i < count; ++i) bits[i] = to_bfloat16(floats[i]);
  }
}

bool is_plain(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

}  // namespace

void gather_rows(ThreadPool& pool, const Activations& x, std::span<const int32_t> rows,
                 const Activations& out) {
  const auto count = static_cast<int64_t>(rows.size());
  SPW_ASSERT(is_plain(x.dtype) && is_plain(out.dtype));
  SPW_ASSERT(x.dtype == out.dtype || x.dtype == DType::kF32 || out.dtype == DType::kF32);
  SPW_ASSERT(out.rows == count && out.cols == x.cols);
  for (const int32_t row : rows) SPW_ASSERT(row >= 0 && row < x.rows);
  parallel_if_large(pool, count * x.cols / 4, count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      convert_row(x.dtype, x.row_range(rows[static_cast<size_t>(i)], 1).data, out.dtype,
                  out.row_range(i, 1).data, x.cols);
    }
  });
}

void copy_rows(ThreadPool& pool, const Activations& x, const Activations& out) {
  SPW_ASSERT(is_plain(x.dtype) && is_plain(out.dtype));
  SPW_ASSERT(x.dtype == out.dtype || x.dtype == DType::kF32 || out.dtype == DType::kF32);
  SPW_ASSERT(x.rows == out.rows && x.cols == out.cols);
  parallel_if_large(pool, x.rows * x.cols / 4, x.rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      convert_row(x.dtype, x.row_range(i, 1).data, out.dtype, out.row_range(i, 1).data, x.cols);
    }
  });
}

}  // namespace cpu
}  // namespace spillway
#endif  // HWY_ONCE
