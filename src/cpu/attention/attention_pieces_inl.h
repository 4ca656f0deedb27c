// SPDX-License-Identifier: Apache-2.0
// The building blocks of the attention kernels: pages as floats, scores, softmax, weighted sums.
#if defined(SPILLWAY_CPU_ATTENTION_PIECES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_ATTENTION_PIECES_INL_H_
#undef SPILLWAY_CPU_ATTENTION_PIECES_INL_H_
#else
#define SPILLWAY_CPU_ATTENTION_PIECES_INL_H_
#endif

#include "cpu/attention/attention_args.h"
#include "cpu/dot_tile_inl.h"
#include "cpu/vector_math_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

inline constexpr float kNoKey = -3.0e38F;  // below any score

// Converts n quantized elements of one group to floats.
HWY_INLINE void group_floats(KvType type, const uint8_t* HWY_RESTRICT codes, float scale, float min,
                             int64_t n, float* HWY_RESTRICT out) {
  const FloatTag df;
  const hn::Rebind<int32_t, FloatTag> di;
  const FloatVec factor = hn::Set(df, scale), base = hn::Set(df, min);
  int64_t i = 0;
  if (type == KvType::kInt8) {
    const hn::Rebind<int8_t, FloatTag> d8;
    const int8_t* x = reinterpret_cast<const int8_t*>(codes);
    for (; i + kLanes <= n; i += kLanes) {
      const FloatVec value = hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(d8, x + i)));
      hn::StoreU(hn::Mul(value, factor), df, out + i);
    }
    for (; i < n; ++i) out[i] = scale * static_cast<float>(x[i]);
    return;
  }
  const hn::Rebind<uint8_t, FloatTag> d8;
  const int64_t half = n / 2;
  for (; i + kLanes <= half; i += kLanes) {
    const auto pair = hn::PromoteTo(di, hn::LoadU(d8, codes + i));
    const FloatVec low = hn::ConvertTo(df, hn::And(pair, hn::Set(di, 15)));
    const FloatVec high = hn::ConvertTo(df, hn::ShiftRight<4>(pair));
    hn::StoreU(hn::MulAdd(low, factor, base), df, out + i);
    hn::StoreU(hn::MulAdd(high, factor, base), df, out + half + i);
  }
  for (; i < half; ++i) {
    out[i] = min + scale * static_cast<float>(codes[i] & 15);
    out[half + i] = min + scale * static_cast<float>(codes[i] >> 4);
  }
}

// Transposes values' codes [bytes / 2][2][2][8] to [16][bytes].
HWY_INLINE void code_rows(const uint8_t* HWY_RESTRICT codes, int64_t bytes,
                          uint8_t* HWY_RESTRICT out) {
  const hn::FixedTag<uint8_t, 16> d;
  const hn::FixedTag<uint64_t, 2> d64;
  int64_t c = 0;
  for (; c + 16 <= bytes; c += 16) {
    hn::Vec<decltype(d)> x[16], y[16];
    for (int i = 0; i < 16; i += 2) {  // each byte's 16 tokens
      const auto first = hn::BitCast(d64, hn::LoadU(d, codes + (c + i) * 16));
      const auto second = hn::BitCast(d64, hn::LoadU(d, codes + (c + i) * 16 + 16));
      x[i] = hn::BitCast(d, hn::InterleaveLower(d64, first, second));
      x[i + 1] = hn::BitCast(d, hn::InterleaveUpper(d64, first, second));
    }
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 8; ++i) {
        y[2 * i] = hn::InterleaveLower(d, x[i], x[i + 8]);
        y[2 * i + 1] = hn::InterleaveUpper(d, x[i], x[i + 8]);
      }
      for (int i = 0; i < 16; ++i) x[i] = y[i];
    }
    for (int i = 0; i < 16; ++i) hn::StoreU(x[i], d, out + i * bytes + c);
  }
  for (; c < bytes; ++c) {
    for (int i = 0; i < 16; ++i) {
      out[i * bytes + c] = codes[c / 2 * 32 + i / 8 * 16 + c % 2 * 8 + i % 8];
    }
  }
}

// Converts n elements of F16 or BF16 to floats.
HWY_INLINE void half_floats(KvType type, const uint8_t* HWY_RESTRICT from, int64_t n,
                            float* HWY_RESTRICT out) {
  const FloatTag df;
  int64_t i = 0;
  if (type == KvType::kBf16) {
    for (; i + kLanes <= n; i += kLanes) hn::StoreU(load_bf16(from + 2 * i), df, out + i);
    for (; i < n; ++i) out[i] = bfloat_at(from + 2 * i);
    return;
  }
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load_f16(from + 2 * i), df, out + i);
  for (; i < n; ++i) out[i] = half_at(from + 2 * i);
}

// Calls f<Rows>() for pages of F16 or BF16.
template <class F>
HWY_INLINE void with_half_rows(KvType type, const F& f) {
  if (type == KvType::kBf16) {
    f.template operator()<BfloatRows>();
  } else {
    f.template operator()<HalfRows>();
  }
}

// Returns a page's [16, head_dim] as floats with rows padded_dim apart: in place if possible, else
// in `buffer`, whose padding columns are zero. Only the first `tokens` rows are converted.
HWY_INLINE const float* page_floats(const AttentionArgs& a, KvPart part, const uint8_t* page,
                                    int64_t tokens, float* HWY_RESTRICT buffer) {
  const FloatTag df;
  const KvPageLayout& layout = a.layout;
  if (layout.type == KvType::kF32) {
    const float* floats = reinterpret_cast<const float*>(page);
    if (a.head_dim == a.padded_dim) return floats;
    for (int64_t j = 0; j < tokens; ++j) {
      memcpy(buffer + j * a.padded_dim, floats + j * a.head_dim,
             static_cast<size_t>(a.head_dim) * sizeof(float));
    }
    return buffer;
  }
  if (is_quantized(layout.type)) {
    HWY_ALIGN uint8_t turned[kPageTokens * 256];
    const uint8_t* codes = page + layout.codes_at;
    if (part == KvPart::kValues) {
      code_rows(codes, layout.row_bytes, turned);
      codes = turned;
    }
    const bool int4 = layout.type == KvType::kInt4;
    for (int64_t g = 0; g < layout.groups; ++g) {
      // The scales of all tokens are stored together.
      HWY_ALIGN float scales[kPageTokens], mins[kPageTokens] = {};
      for (int64_t j = 0; j < kPageTokens; j += kLanes) {
        const int64_t at = 2 * (g * kPageTokens + j);
        hn::Store(load_f16(page + at), df, scales + j);
        if (int4) hn::Store(load_f16(page + layout.mins_at + at), df, mins + j);
      }
      for (int64_t j = 0; j < tokens; ++j) {
        group_floats(layout.type,
                     codes + j * layout.row_bytes + g * (int4 ? kKvGroup / 2 : kKvGroup), scales[j],
                     mins[j], layout.group_size(g), buffer + j * a.padded_dim + g * kKvGroup);
      }
    }
    return buffer;
  }
  if (a.head_dim == a.padded_dim) {
    half_floats(layout.type, page, tokens * a.head_dim, buffer);
    return buffer;
  }
  for (int64_t j = 0; j < tokens; ++j) {
    half_floats(layout.type, page + j * layout.row_bytes, a.head_dim, buffer + j * a.padded_dim);
  }
  return buffer;
}

struct StoreScores {
  float* scores;  // of the tile's first query, at the first of 4 keys
  HWY_INLINE void operator()(int query, QuadVec dots) const {
    hn::StoreU(dots, QuadTag(), scores + query * kSplitKeys);
  }
};

// V vectors of one query's output. They are named members because an array would live in memory.
template <int V>
struct OutputStrip {
  FloatVec c0, c1, c2, c3;
  static HWY_INLINE OutputStrip load(const float* out) {
    const FloatTag df;
    return {hn::Load(df, out), hn::Load(df, out + (V > 1 ? kLanes : 0)),
            hn::Load(df, out + (V > 2 ? 2 * kLanes : 0)),
            hn::Load(df, out + (V > 2 ? 3 * kLanes : 0))};
  }
  HWY_INLINE void store(float* out) const {
    const FloatTag df;
    hn::Store(c0, df, out);
    if constexpr (V > 1) hn::Store(c1, df, out + kLanes);
    if constexpr (V > 2) hn::Store(c2, df, out + 2 * kLanes);
    if constexpr (V > 2) hn::Store(c3, df, out + 3 * kLanes);
  }
  HWY_INLINE void add(float p, FloatVec v0, FloatVec v1, FloatVec v2, FloatVec v3) {
    const FloatVec weight = hn::Set(FloatTag(), p);
    c0 = hn::MulAdd(weight, v0, c0);
    if constexpr (V > 1) c1 = hn::MulAdd(weight, v1, c1);
    if constexpr (V > 2) c2 = hn::MulAdd(weight, v2, c2);
    if constexpr (V > 2) c3 = hn::MulAdd(weight, v3, c3);
  }
};

// Adds to out[i] the sum over keys j in [0, keys) of p[i][j] * v[j], for Q queries and V (1, 2 or
// 4) vectors of the head.
template <int Q, int V, class Rows>
HWY_INLINE void add_values_part(const float* HWY_RESTRICT p,
                                const typename Rows::Element* HWY_RESTRICT v, int64_t keys,
                                int64_t dim, float* HWY_RESTRICT out) {
  using Strip = OutputStrip<V>;
  Strip q0 = Strip::load(out), q1 = Strip::load(out + (Q > 1 ? dim : 0)),
        q2 = Strip::load(out + (Q > 2 ? 2 * dim : 0)),
        q3 = Strip::load(out + (Q > 3 ? 3 * dim : 0));
  for (int64_t j = 0; j < keys; ++j, v += dim) {
    const FloatVec v0 = Rows::at(v, 0);
    const FloatVec v1 = V > 1 ? Rows::at(v, kLanes) : v0;
    const FloatVec v2 = V > 2 ? Rows::at(v, 2 * kLanes) : v0;
    const FloatVec v3 = V > 2 ? Rows::at(v, 3 * kLanes) : v0;
    q0.add(p[j], v0, v1, v2, v3);
    if constexpr (Q > 1) q1.add(p[kSplitKeys + j], v0, v1, v2, v3);
    if constexpr (Q > 2) q2.add(p[2 * kSplitKeys + j], v0, v1, v2, v3);
    if constexpr (Q > 3) q3.add(p[3 * kSplitKeys + j], v0, v1, v2, v3);
  }
  q0.store(out);
  if constexpr (Q > 1) q1.store(out + dim);
  if constexpr (Q > 2) q2.store(out + 2 * dim);
  if constexpr (Q > 3) q3.store(out + 3 * dim);
}
template <int Q, class Rows>
HWY_NOINLINE void add_values(const float* p, const typename Rows::Element* v, int64_t keys,
                             int64_t dim, float* out) {
  constexpr int V = kManyRegisters ? 4 : 2;
  int64_t c = 0;
  for (; c + V * kLanes <= dim; c += V * kLanes) {
    add_values_part<Q, V, Rows>(p, v + c, keys, dim, out + c);
  }
  for (; c < dim; c += kLanes) add_values_part<Q, 1, Rows>(p, v + c, keys, dim, out + c);
}

// Replaces scores [begin, end) of one query by e^(scale * score - maximum). Lane i % kLanes adds up
// element i, whatever `begin` is.
HWY_INLINE void softmax_part(float* HWY_RESTRICT scores, int64_t begin, int64_t end, float scale,
                             float* maximum, float* sum) {
  const FloatTag df;
  const hn::Rebind<int32_t, FloatTag> di;
  const FloatVec none = hn::Set(df, kNoKey), factor = hn::Set(df, scale);
  const int64_t first = begin / kLanes * kLanes;
  FloatVec top = none;
  for (int64_t i = first; i < end; i += kLanes) {
    FloatVec s = hn::Mul(hn::Load(df, scores + i), factor);
    if (i < begin || i + kLanes > end) {
      const auto index = hn::Iota(di, static_cast<int32_t>(i));
      const auto seen = hn::And(hn::Gt(index, hn::Set(di, static_cast<int32_t>(begin - 1))),
                                hn::Lt(index, hn::Set(di, static_cast<int32_t>(end))));
      s = hn::IfThenElse(hn::RebindMask(df, seen), s, none);
    }
    hn::Store(s, df, scores + i);
    top = hn::Max(top, s);
  }
  top = hn::MaxOfLanes(df, top);
  FloatVec total = hn::Zero(df);
  for (int64_t i = first; i < end; i += kLanes) {
    const FloatVec p = exp_vec(hn::Sub(hn::Load(df, scores + i), top));
    hn::Store(p, df, scores + i);
    total = hn::Add(total, p);
  }
  *maximum = hn::GetLane(top);
  const FloatVec zero = hn::Zero(df);
  *sum = hn::GetLane(sum4(total, zero, zero, zero));
}

// Computes the scores of all queries for the 16 keys of one page. scores: of query 0, at the page's
// first key.
template <class Rows>
HWY_INLINE void score_page(const float* q, int64_t queries, int64_t dim,
                           const typename Rows::Element* keys, float* scores) {
  for (int64_t i = 0; i < queries; i += kTileColumns) {
    const int64_t columns = HWY_MIN(int64_t{kTileColumns}, queries - i);
    for (int64_t j = 0; j < kPageTokens; j += 4) {
      dot_tile_columns<Rows>(columns, keys + j * dim, dim, q + i * dim, dim, dim,
                             StoreScores{scores + i * kSplitKeys + j});
    }
  }
}

// Loads the tile's queries, [queries, padded_dim], padded with zeros.
HWY_INLINE void load_queries(const AttentionArgs& a, const AttentionTile& tile, float* q) {
  const int64_t dim = a.padded_dim;
  for (int64_t i = 0; i < tile.rows * a.group; ++i) {
    const float* from = a.q + (tile.first_row + i / a.group) * a.q_stride +
                        (tile.kv_head * a.group + i % a.group) * a.head_dim;
    memcpy(q + i * dim, from, static_cast<size_t>(a.head_dim) * sizeof(float));
    memset(q + i * dim + a.head_dim, 0, static_cast<size_t>(dim - a.head_dim) * sizeof(float));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#endif
