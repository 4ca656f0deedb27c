// SPDX-License-Identifier: Apache-2.0
#include "cpu/kv/kv_append.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kv/kv_append.cc"
#include <hwy/foreach_target.h>
// These must be included after foreach_target.
#include <hwy/highway.h>

#include "cpu/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

// Returns the largest magnitude. Magnitudes are ordered like their bits, with NaN above all, so
// that NaN is kept; a maximum of floats would drop it.
HWY_INLINE float largest_of(const float* HWY_RESTRICT x, int64_t n) {
  const FloatTag df;
  const hn::Rebind<int32_t, FloatTag> di;
  auto top = hn::Zero(di);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    top = hn::Max(top, hn::BitCast(di, hn::Abs(hn::LoadU(df, x + i))));
  }
  if (i < n) {
    HWY_ALIGN float rest[kLanes] = {};
    memcpy(rest, x + i, static_cast<size_t>(n - i) * sizeof(float));
    top = hn::Max(top, hn::BitCast(di, hn::Abs(hn::Load(df, rest))));
  }
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, top)));
}
HWY_INLINE bool fits_half(float x) { return x < kKvHalfEnd && x > -kKvHalfEnd; }
// Returns how numbers of magnitudes up to `largest` are stored; `held` says whether the type can
// hold them.
HWY_INLINE KvStored stored(float largest, bool held) {
  if (!(largest <= std::numeric_limits<float>::max())) return KvStored::kNotFinite;
  return held ? KvStored::kWell : KvStored::kBeyondRange;
}

KvStored store_f32(const float* x, float* out, int64_t count) {
  memcpy(out, x, static_cast<size_t>(count) * sizeof(float));
  const KvStored how = stored(largest_of(x, count), true);
  if (how == KvStored::kWell) return how;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) out[i] = std::bit_cast<float>(kKvNanFloat);
  }
  return how;
}

KvStored store_f16(const float* x, uint16_t* out, int64_t count) {
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
  const float largest = largest_of(x, count);
  const KvStored how = stored(largest, fits_half(largest));
  if (how == KvStored::kWell) return how;
  for (i = 0; i < count; ++i) {
    if (!fits_half(x[i])) out[i] = kKvNanHalf;
  }
  return how;
}

KvStored store_bf16(const float* x, uint16_t* out, int64_t count) {
  const FloatTag df;
  const hn::Rebind<uint32_t, FloatTag> d32;
  const hn::Rebind<uint16_t, FloatTag> d16;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    // Rounds to the nearest, ties to even; non-finite numbers are handled below.
    const auto bits = hn::BitCast(d32, hn::LoadU(df, x + i));
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
    hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(rounded)), d16, out + i);
  }
  for (; i < count; ++i) out[i] = to_bfloat16(x[i]).bits;
  const float largest = largest_of(x, count);
  const KvStored how = stored(largest, largest < kKvBf16End);
  if (how == KvStored::kWell) return how;
  for (i = 0; i < count; ++i) {
    if (!(std::fabs(x[i]) < kKvBf16End)) out[i] = kKvNanBf16;
  }
  return how;
}

// Computes the codes of one group as the reference does: the nearest of (x - base) * inverse in
// [lowest, highest].
HWY_INLINE void group_codes(const float* HWY_RESTRICT x, int64_t n, float base, float inverse,
                            float lowest, float highest, int32_t* HWY_RESTRICT codes) {
  const FloatTag df;
  const hn::Rebind<int32_t, FloatTag> di;
  const auto code = [&](auto d, FloatVec value) HWY_ATTR {
    value = hn::Mul(hn::Sub(value, hn::Set(d, base)), hn::Set(d, inverse));
    value = hn::Min(hn::Max(value, hn::Set(d, lowest)), hn::Set(d, highest));
    return hn::NearestInt(value);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(code(df, hn::LoadU(df, x + i)), di, codes + i);
  }
  if (i < n) {
    HWY_ALIGN float rest[kLanes] = {};
    HWY_ALIGN int32_t rest_codes[kLanes];
    memcpy(rest, x + i, static_cast<size_t>(n - i) * sizeof(float));
    hn::Store(code(df, hn::Load(df, rest)), di, rest_codes);
    memcpy(codes + i, rest_codes, static_cast<size_t>(n - i) * sizeof(int32_t));
  }
}

struct Range {
  float low, high;
};
HWY_INLINE Range range_of(const float* x, int64_t n) {
  const FloatTag df;
  FloatVec low = hn::Set(df, x[0]), high = low;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    low = hn::Min(low, hn::LoadU(df, x + i));
    high = hn::Max(high, hn::LoadU(df, x + i));
  }
  Range range{hn::GetLane(hn::MinOfLanes(df, low)), hn::GetLane(hn::MaxOfLanes(df, high))};
  for (; i < n; ++i) range = {HWY_MIN(range.low, x[i]), HWY_MAX(range.high, x[i])};
  return range;
}

// Stores x [head_dim] as token `token` of a quantized page, as store_kv_reference() does.
KvStored store_quantized(const KvPageLayout& layout, KvPart part, const float* x, uint8_t* page,
                         int64_t token) {
  float rotated[256];
  if (is_rotated(layout.type)) {
    memcpy(rotated, x, static_cast<size_t>(layout.head_dim) * sizeof(float));
    rotate_kv(rotated, layout.head_dim);
    x = rotated;
  }
  const bool int4 = layout.type == KvType::kInt4;
  HWY_ALIGN int32_t codes[kKvGroup];
  KvStored worst = KvStored::kWell;
  for (int64_t g = 0; g < layout.groups; ++g, x += kKvGroup) {
    const int64_t n = layout.group_size(g), at = 2 * (g * kKvBlockTokens + token);
    const float largest = largest_of(x, n);
    Half min{};
    float step = largest / 127;
    if (int4) {
      const Range range = range_of(x, n);
      min = to_half(range.low);
      step = fits_half(range.low) ? (range.high - to_float(min)) / 15 : kKvHalfEnd;
    }
    Half scale = to_half(step);
    if ((scale.bits & 0x8000U) != 0) scale = Half{};
    const KvStored now = stored(largest, fits_half(step));
    if (now != KvStored::kWell) {
      worst = HWY_MAX(worst, now);
      scale = min = Half{kKvNanHalf};
    }
    const float base = int4 ? to_float(min) : 0;
    const float inverse = scale.bits == 0 ? 0 : 1 / to_float(scale);
    memcpy(page + at, &scale, sizeof(scale));
    if (int4) memcpy(page + layout.mins_at + at, &min, sizeof(min));
    if (now != KvStored::kWell) {
      memset(codes, 0, sizeof(codes));
    } else if (int4) {
      group_codes(x, n, base, inverse, 0, 15, codes);
      for (int64_t i = 0; i < n / 2; ++i) codes[i] |= codes[n / 2 + i] << 4;
    } else {
      group_codes(x, n, 0, inverse, -127, 127, codes);
    }
    const int64_t bytes = int4 ? n / 2 : n, first = g * (int4 ? kKvGroup / 2 : kKvGroup);
    uint8_t* to = page + layout.code_at(part, token, first);
    if (part == KvPart::kKeys) {
      for (int64_t i = 0; i < bytes; ++i) to[i] = static_cast<uint8_t>(codes[i]);
    } else {
      for (int64_t i = 0; i < bytes; i += 2, to += 32) {
        to[0] = static_cast<uint8_t>(codes[i]);
        to[8] = static_cast<uint8_t>(codes[i + 1]);
      }
    }
  }
  return worst;
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(store_f32);
HWY_EXPORT(store_f16);
HWY_EXPORT(store_bf16);
HWY_EXPORT(store_quantized);

namespace cpu {
namespace {

KvStored store_head(const KvPageLayout& layout, KvPart part, std::byte* page, int64_t token,
                    const float* x) {
  std::byte* row = page + layout.codes_at + token * layout.row_bytes;
  if (layout.type == KvType::kF32) {
    return HWY_DYNAMIC_DISPATCH(store_f32)(x, reinterpret_cast<float*>(row), layout.head_dim);
  }
  if (layout.type == KvType::kF16) {
    return HWY_DYNAMIC_DISPATCH(store_f16)(x, reinterpret_cast<uint16_t*>(row), layout.head_dim);
  }
  if (layout.type == KvType::kBf16) {
    return HWY_DYNAMIC_DISPATCH(store_bf16)(x, reinterpret_cast<uint16_t*>(row), layout.head_dim);
  }
  return HWY_DYNAMIC_DISPATCH(store_quantized)(layout, part, x, reinterpret_cast<uint8_t*>(page),
                                               token);
}

// Reports a fault; only the first one is kept.
void report(KvFault fault, std::atomic<uint32_t>& faults) {
  uint32_t none = 0;
  faults.compare_exchange_strong(none, fault.word(), std::memory_order_relaxed);
}

}  // namespace

void check_spans(const KvLayerView& kv, std::span<const SequenceSpan> spans, int64_t rows) {
  SPW_ASSERT(kv.kv_heads > 0 && kv_type_supports(kv.type, kv.head_dim));
  for (const SequenceSpan& span : spans) {
    SPW_ASSERT(span.first_row >= 0 && span.rows >= 0 && span.start >= 0);
    SPW_ASSERT(int64_t{span.first_row} + span.rows <= rows);
    const int64_t end = int64_t{span.start} + span.rows;
    SPW_ASSERT(static_cast<int64_t>(span.block_table.size()) * kKvBlockTokens >= end);
  }
}

void kv_append(ThreadPool& pool, const Activations& k, const Activations& v, const KvLayerView& kv,
               std::span<const SequenceSpan> spans, std::atomic<uint32_t>& faults) {
  const int64_t width = int64_t{kv.kv_heads} * kv.head_dim;
  SPW_ASSERT(k.dtype == DType::kF32 && v.dtype == DType::kF32);
  SPW_ASSERT(k.rows == v.rows && k.cols == width && v.cols == width);
  check_spans(kv, spans, k.rows);
  const KvPageLayout layout(kv.type, kv.head_dim);
  // Rows of all sequences are stored together, since in a decode batch each sequence has only one.
  std::vector<std::pair<const SequenceSpan*, int64_t>> rows;  // a span and the index of its row
  for (const SequenceSpan& span : spans) {
    for (int64_t page = span.start / kKvBlockTokens;
         page * kKvBlockTokens < int64_t{span.start} + span.rows; ++page) {
      const int32_t block = span.block_table[static_cast<size_t>(page)];
      SPW_ASSERT(block >= 0 && block < kv.blocks);
    }
    for (int64_t i = 0; i < span.rows; ++i) rows.emplace_back(&span, i);
  }
  const auto store_row = [&](const SequenceSpan& span, int64_t i) {
    const int64_t position = span.start + i, row = span.first_row + i;
    const int64_t block = span.block_table[static_cast<size_t>(position / kKvBlockTokens)];
    for (int64_t head = 0; head < kv.kv_heads; ++head) {
      const int64_t page = (block * kv.kv_heads + head) * layout.bytes;
      const int64_t token = position % kKvBlockTokens, column = head * kv.head_dim;
      const auto store = [&](KvPart part, std::byte* plane, const Activations& x) {
        const KvStored how = store_head(layout, part, plane + page, token, x.f32(row) + column);
        if (how == KvStored::kBeyondRange) report({kv.layer, part}, faults);
      };
      store(KvPart::kKeys, kv.k, k);
      store(KvPart::kValues, kv.v, v);
    }
  };
  const auto count = static_cast<int64_t>(rows.size());
  // Computing codes takes about ten times as long as copying.
  const int64_t work = count * width * (is_quantized(kv.type) ? 16 : 2);
  parallel_if_large(pool, work, count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [span, row] = rows[static_cast<size_t>(i)];
      store_row(*span, row);
    }
  });
}

}  // namespace cpu
}  // namespace spillway
#endif
