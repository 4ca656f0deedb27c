// SPDX-License-Identifier: Apache-2.0
// Attention of a few queries over quantized pages, with the codes as they are stored: nothing is
// expanded into memory, and values are not transposed. For processors without kernels of their own.
//
// Scores multiply each code with its query element, and then the sum once with the group's scale.
// For values, the tokens of a byte are stored together, so lanes are tokens; each pair of bytes has
// a vector of sums that stays from page to page, and lanes are added up once, at the end of the
// cut.
#if defined(SPILLWAY_CPU_ATTENTION_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_ATTENTION_CODES_INL_H_
#undef SPILLWAY_CPU_ATTENTION_CODES_INL_H_
#else
#define SPILLWAY_CPU_ATTENTION_CODES_INL_H_
#endif

#include "cpu/attention/attention_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

inline constexpr int64_t kMostGroups = 4;  // of a head of 256

// Loads the F16 scales (or minima) of a page's groups, 16 tokens each.
HWY_INLINE void page_scales(const uint8_t* at, int64_t groups, float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < groups * kPageTokens; i += kLanes) {
    hn::Store(load_f16(at + 2 * i), FloatTag(), out + i);
  }
}

// Returns acc + the codes of kLanes bytes times queries, for one group's row at byte i.
template <bool kInt4>
HWY_INLINE FloatVec add_codes(const uint8_t* HWY_RESTRICT codes, const float* HWY_RESTRICT q,
                              int64_t i, FloatVec acc) {
  const FloatTag df;
  const hn::Rebind<int32_t, FloatTag> di;
  if constexpr (kInt4) {
    const hn::Rebind<uint8_t, FloatTag> d8;
    const auto pair = hn::PromoteTo(di, hn::LoadU(d8, codes + i));
    const FloatVec low = hn::ConvertTo(df, hn::And(pair, hn::Set(di, 15)));
    const FloatVec high = hn::ConvertTo(df, hn::ShiftRight<4>(pair));
    acc = hn::MulAdd(low, hn::LoadU(df, q + i), acc);
    return hn::MulAdd(high, hn::LoadU(df, q + kKvGroup / 2 + i), acc);
  } else {
    const hn::Rebind<int8_t, FloatTag> d8;
    const auto code = hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes) + i));
    return hn::MulAdd(hn::ConvertTo(df, code), hn::LoadU(df, q + i), acc);
  }
}

// Computes the scores of one query for the 16 keys of a page. q_sums: those of the query's groups.
template <bool kInt4>
HWY_NOINLINE void score_codes(const KvPageLayout& layout, const uint8_t* page,
                              const float* HWY_RESTRICT q, const float* HWY_RESTRICT q_sums,
                              float* HWY_RESTRICT scores) {
  constexpr int64_t kGroupBytes = kInt4 ? kKvGroup / 2 : kKvGroup;
  const FloatTag df;
  HWY_ALIGN float scales[kMostGroups * kPageTokens], mins[kMostGroups * kPageTokens];
  page_scales(page, layout.groups, scales);
  if (kInt4) page_scales(page + layout.mins_at, layout.groups, mins);
  const uint8_t* codes = page + layout.codes_at;
  const int64_t row = layout.row_bytes;
  for (int64_t t = 0; t < kPageTokens; t += 4) {
    FloatVec s0 = hn::Zero(df), s1 = s0, s2 = s0, s3 = s0;
    for (int64_t g = 0; g < layout.groups; ++g) {
      const uint8_t* c = codes + t * row + g * kGroupBytes;
      const float* qg = q + g * kKvGroup;
      FloatVec a0 = hn::Zero(df), a1 = a0, a2 = a0, a3 = a0;
      for (int64_t i = 0; i < kGroupBytes; i += kLanes) {
        a0 = add_codes<kInt4>(c, qg, i, a0);
        a1 = add_codes<kInt4>(c + row, qg, i, a1);
        a2 = add_codes<kInt4>(c + 2 * row, qg, i, a2);
        a3 = add_codes<kInt4>(c + 3 * row, qg, i, a3);
      }
      const float* scale = scales + g * kPageTokens + t;
      s0 = hn::MulAdd(a0, hn::Set(df, scale[0]), s0);
      s1 = hn::MulAdd(a1, hn::Set(df, scale[1]), s1);
      s2 = hn::MulAdd(a2, hn::Set(df, scale[2]), s2);
      s3 = hn::MulAdd(a3, hn::Set(df, scale[3]), s3);
    }
    hn::StoreU(sum4(s0, s1, s2, s3), QuadTag(), scores + t);
  }
  if (!kInt4) return;
  for (int64_t t = 0; t < kPageTokens; t += kLanes) {
    FloatVec sum = hn::LoadU(df, scores + t);
    for (int64_t g = 0; g < layout.groups; ++g) {
      sum = hn::MulAdd(hn::Load(df, mins + g * kPageTokens + t), hn::Set(df, q_sums[g]), sum);
    }
    hn::StoreU(sum, df, scores + t);
  }
}

// Adds one page's values, each token with its probability, to the sums: [bytes / 2][16] for low
// codes, then as many for high ones (int4). bases [groups] gets what is added to every element of a
// group.
template <bool kInt4>
HWY_NOINLINE void add_value_codes(const KvPageLayout& layout, const uint8_t* page,
                                  const float* HWY_RESTRICT p, float* HWY_RESTRICT sums,
                                  float* HWY_RESTRICT bases) {
  constexpr int64_t kPairs = (kInt4 ? kKvGroup / 2 : kKvGroup) / 2;  // pairs of bytes in a group
  const FloatTag df;
  const hn::Rebind<int32_t, FloatTag> di;
  HWY_ALIGN float scales[kMostGroups * kPageTokens], mins[kMostGroups * kPageTokens];
  page_scales(page, layout.groups, scales);
  if (kInt4) page_scales(page + layout.mins_at, layout.groups, mins);
  float* const high_sums = sums + layout.row_bytes / 2 * kPageTokens;
  for (int64_t g = 0; g < layout.groups; ++g) {
    // The weights of tokens 0 to 7, twice, and of tokens 8 to 15, in the order of a pair's bytes.
    // Scales of tokens without weight may be anything, even NaN.
    HWY_ALIGN float first[16], second[16];
    float base = 0;
    for (int64_t t = 0; t < kPageTokens; ++t) {
      const float weight = p[t] == 0 ? 0 : p[t] * scales[g * kPageTokens + t];
      float* const half = (t < 8 ? first : second) + t % 8;
      half[0] = half[8] = weight;
      if (kInt4) base += p[t] == 0 ? 0 : p[t] * mins[g * kPageTokens + t];
    }
    bases[g] += base;
    const uint8_t* codes = page + layout.codes_at + g * kPairs * 32;
    float* low = sums + g * kPairs * kPageTokens;
    float* high = high_sums + g * kPairs * kPageTokens;
    for (int64_t i = 0; i < 16; i += kLanes) {
      const FloatVec w0 = hn::Load(df, first + i), w1 = hn::Load(df, second + i);
      for (int64_t pair = 0; pair < kPairs; ++pair) {
        const uint8_t* at = codes + pair * 32 + i;
        float* to = low + pair * 16 + i;
        if constexpr (kInt4) {
          const hn::Rebind<uint8_t, FloatTag> d8;
          const auto c0 = hn::PromoteTo(di, hn::LoadU(d8, at));
          const auto c1 = hn::PromoteTo(di, hn::LoadU(d8, at + 16));
          const auto mask = hn::Set(di, 15);
          FloatVec sum = hn::MulAdd(hn::ConvertTo(df, hn::And(c0, mask)), w0, hn::Load(df, to));
          hn::Store(hn::MulAdd(hn::ConvertTo(df, hn::And(c1, mask)), w1, sum), df, to);
          float* up = high + pair * 16 + i;
          sum = hn::MulAdd(hn::ConvertTo(df, hn::ShiftRight<4>(c0)), w0, hn::Load(df, up));
          hn::Store(hn::MulAdd(hn::ConvertTo(df, hn::ShiftRight<4>(c1)), w1, sum), df, up);
        } else {
          const hn::Rebind<int8_t, FloatTag> d8;
          const auto* signed_at = reinterpret_cast<const int8_t*>(at);
          const FloatVec c0 = hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(d8, signed_at)));
          const FloatVec c1 = hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(d8, signed_at + 16)));
          hn::Store(hn::MulAdd(c1, w1, hn::MulAdd(c0, w0, hn::Load(df, to))), df, to);
        }
      }
    }
  }
}

// Converts the sums to elements of the head.
template <bool kInt4>
HWY_INLINE void finish_value_codes(const KvPageLayout& layout, const float* HWY_RESTRICT sums,
                                   const float* HWY_RESTRICT bases, float* HWY_RESTRICT out) {
  constexpr int64_t kGroupBytes = kInt4 ? kKvGroup / 2 : kKvGroup;
  const auto eight = [](const float* x) {
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
  };
  const float* const high = sums + layout.row_bytes / 2 * kPageTokens;
  for (int64_t g = 0; g < layout.groups; ++g) {
    float* to = out + g * kKvGroup;
    for (int64_t b = 0; b < kGroupBytes; ++b) {
      const int64_t at = (g * kGroupBytes + b) * 8;  // pairs of bytes: 8 lanes each
      to[b] = eight(sums + at) + bases[g];
      if (kInt4) to[b + kGroupBytes] = eight(high + at) + bases[g];
    }
  }
}

// Does the work of attend_split() for heads of whole groups.
template <bool kInt4>
HWY_INLINE void attend_codes(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                             const AttentionPartial& result, float* scratch) {
  const int64_t queries = tile.rows * a.group, dim = a.padded_dim;
  float* q = scratch;
  float* scores = q + kTileQueries * dim;
  float* sums = scores + kTileQueries * kSplitKeys;  // at least of a page's size
  load_queries(a, tile, q);
  const int64_t base = split * kSplitKeys;
  const int64_t first = HWY_MAX(tile.first_key(a.window), base);
  const int64_t end = HWY_MIN(tile.end_key(), base + kSplitKeys);
  const int64_t first_page = first / kPageTokens, end_page = (end + kPageTokens - 1) / kPageTokens;

  HWY_ALIGN float q_sums[kTileQueries][kMostGroups];
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t g = 0; g < a.layout.groups; ++g) {
      float sum = 0;
      for (int64_t c = 0; c < kKvGroup; ++c) sum += q[i * dim + g * kKvGroup + c];
      q_sums[i][g] = sum;
    }
  }
  for (int64_t n = first_page; n < end_page; ++n) {
    prefetch_page(a, tile, a.k, n + 2, end_page);
    const uint8_t* page = a.page(a.k, tile.blocks[n], tile.kv_head);
    for (int64_t i = 0; i < queries; ++i) {
      score_codes<kInt4>(a.layout, page, q + i * dim, q_sums[i],
                         scores + i * kSplitKeys + n * kPageTokens - base);
    }
  }
  for (int64_t i = 0; i < queries; ++i) {
    const Seen seen = seen_by(a, tile, base, i / a.group);
    result.maximum[i] = kNoKey;
    result.sum[i] = 0;
    float* const row = scores + i * kSplitKeys;
    if (seen.begin < seen.end) {
      softmax_part(row, seen.begin, seen.end, a.scale, result.maximum + i, result.sum + i);
    }
    // Masked keys get no weight.
    for (int64_t t = first_page * kPageTokens - base; t < HWY_MIN(seen.begin, seen.end); ++t)
      row[t] = 0;
    for (int64_t t = HWY_MAX(seen.end, 0); t < end_page * kPageTokens - base; ++t) row[t] = 0;
  }
  for (int64_t i = 0; i < queries; ++i) {
    float bases[kMostGroups] = {};
    memset(sums, 0, static_cast<size_t>(dim * 8) * sizeof(float));
    for (int64_t n = first_page; n < end_page; ++n) {
      prefetch_page(a, tile, a.v, n + 2, end_page);
      add_value_codes<kInt4>(a.layout, a.page(a.v, tile.blocks[n], tile.kv_head),
                             scores + i * kSplitKeys + n * kPageTokens - base, sums, bases);
    }
    finish_value_codes<kInt4>(a.layout, sums, bases, result.out + i * dim);
  }
}

void attend_split_codes(const AttentionArgs& a, const AttentionTile& tile, int64_t split,
                        const AttentionPartial& result, float* scratch) {
  constexpr int64_t kMostQueries = 4;  // more share an expanded page
  if (a.head_dim % kKvGroup != 0 || tile.rows * a.group > kMostQueries) {
    attend_split(a, tile, split, result, scratch);
  } else if (a.layout.type == KvType::kInt4) {
    attend_codes<true>(a, tile, split, result, scratch);
  } else {
    attend_codes<false>(a, tile, split, result, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#endif
