// SPDX-License-Identifier: Apache-2.0
// Decoders of the K types (256 elements with quantized sub-block scales) and the choice by type.
#if defined(SPILLWAY_CPU_DECODE_K_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_DECODE_K_INL_H_
#undef SPILLWAY_CPU_DECODE_K_INL_H_
#else
#define SPILLWAY_CPU_DECODE_K_INL_H_
#endif

#include "cpu/decode_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

HWY_INLINE uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  memcpy(&word, p, sizeof(word));
  return word;
}
HWY_INLINE ByteVec words(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  HWY_ALIGN uint32_t lanes[4] = {a, b, c, d};
  return hn::BitCast(ByteTag(), hn::Load(hn::FixedTag<uint32_t, 4>(), lanes));
}

struct StoreScaled {
  float* out;
  FloatVec scale;
  HWY_INLINE void operator()(int i, FloatVec q) const {
    hn::Store(hn::Mul(scale, q), FloatTag(), out + i);
  }
};
// out[i] = scale * q[i] for 16 small integers.
HWY_INLINE void scale16(SignedVec q, float scale, float* out) {
  widen16(q, StoreScaled{out, splat(scale)});
}

// v >> shift & mask, with shift 0 allowed.
template <int shift>
HWY_INLINE ByteVec field(ByteVec v, uint8_t mask) {
  if constexpr (shift == 0) {
    return hn::And(v, bytes(mask));
  } else {
    return hn::And(hn::ShiftRight<shift>(v), bytes(mask));
  }
}

struct DecoderQ2_K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = sizeof(BlockQ2_K);
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    alignas(64) float scales[16], minima[16];
    const ByteVec packed = load16(p);
    scale16(as_signed(low_nibbles(packed)), half_at(p + 80), scales);
    // x - y is x + (-y), bit for bit.
    scale16(as_signed(high_nibbles(packed)), -half_at(p + 82), minima);
    for (int half = 0; half < 2; ++half) {
      const uint8_t* q = p + 16 + 32 * half;
      const float* s = scales + 8 * half;
      const float* m = minima + 8 * half;
      pair<0>(sink, 128 * half, q, s, m);
      pair<1>(sink, 128 * half, q, s, m);
      pair<2>(sink, 128 * half, q, s, m);
      pair<3>(sink, 128 * half, q, s, m);
    }
  }

 private:
  template <int quarter, class Sink>
  static HWY_INLINE void pair(Sink& sink, int first, const uint8_t* q, const float* scales,
                              const float* minima) {
    for (int i = 0; i < 2; ++i) {
      const int s = 2 * quarter + i;
      emit_affine(sink, first + 16 * s, field<2 * quarter>(load16(q + 16 * i), 3), splat(scales[s]),
                  splat(minima[s]));
    }
  }
};

struct DecoderQ3_K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = sizeof(BlockQ3_K);
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    alignas(64) float scales[16];
    const uint32_t a = word_at(p + 96), b = word_at(p + 100), top = word_at(p + 104);
    const uint32_t low = 0x0f0f0f0fU, two = 0x03030303U;
    const ByteVec six = words((a & low) | ((top & two) << 4), (b & low) | ((top >> 2 & two) << 4),
                              (a >> 4 & low) | ((top >> 4 & two) << 4),
                              (b >> 4 & low) | ((top >> 6 & two) << 4));
    scale16(minus(six, 32), half_at(p + 108), scales);
    half<0>(sink, p, scales);
    half<1>(sink, p, scales);
  }

 private:
  template <int h, class Sink>
  static HWY_INLINE void half(Sink& sink, const uint8_t* p, const float* scales) {
    pair<4 * h + 0>(sink, p, scales);
    pair<4 * h + 1>(sink, p, scales);
    pair<4 * h + 2>(sink, p, scales);
    pair<4 * h + 3>(sink, p, scales);
  }
  template <int k, class Sink>
  static HWY_INLINE void pair(Sink& sink, const uint8_t* p, const float* scales) {
    for (int i = 0; i < 2; ++i) {
      const ByteVec two = field<2 * (k % 4)>(load16(p + 32 + 32 * (k / 4) + 16 * i), 3);
      const ByteVec third = where_bits(load16(p + 16 * i), bytes(uint8_t{1} << k), 4);
      emit_scaled(sink, 32 * k + 16 * i, minus(hn::Or(two, third), 4), splat(scales[2 * k + i]));
    }
  }
};

// Scales (8 floats, times d) and negated minima (8 floats, times dmin) of Q4_K and Q5_K.
HWY_INLINE void decode_k_scales(const uint8_t* p, float* out) {
  const uint32_t a = word_at(p + 4), b = word_at(p + 8), c = word_at(p + 12);
  const uint32_t six = 0x3f3f3f3fU, low = 0x0f0f0f0fU, two = 0x03030303U;
  const ByteVec packed = words(a & six, (c & low) | ((a >> 6 & two) << 4), b & six,
                               (c >> 4 & low) | ((b >> 6 & two) << 4));
  alignas(64) float factors[16];
  scale16(as_signed(packed), 1.0F, factors);
  const float d = half_at(p), dmin = -half_at(p + 2);
  const hn::CappedTag<float, 8> d8;
  for (size_t i = 0; i < 8; i += hn::Lanes(d8)) {
    hn::Store(hn::Mul(hn::Set(d8, d), hn::Load(d8, factors + i)), d8, out + i);
    hn::Store(hn::Mul(hn::Set(d8, dmin), hn::Load(d8, factors + 8 + i)), d8, out + 8 + i);
  }
}

struct DecoderQ4_K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = sizeof(BlockQ4_K);
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    alignas(64) float scales[16];
    decode_k_scales(p, scales);
    for (int pair = 0; pair < 4; ++pair) {
      const ByteVec q0 = load16(p + 16 + 32 * pair), q1 = load16(p + 32 + 32 * pair);
      const FloatVec s0 = splat(scales[2 * pair]), m0 = splat(scales[8 + 2 * pair]);
      const FloatVec s1 = splat(scales[2 * pair + 1]), m1 = splat(scales[9 + 2 * pair]);
      emit_affine(sink, 64 * pair, low_nibbles(q0), s0, m0);
      emit_affine(sink, 64 * pair + 16, low_nibbles(q1), s0, m0);
      emit_affine(sink, 64 * pair + 32, high_nibbles(q0), s1, m1);
      emit_affine(sink, 64 * pair + 48, high_nibbles(q1), s1, m1);
    }
  }
};

struct DecoderQ5_K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = sizeof(BlockQ5_K);
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    alignas(64) float scales[16];
    decode_k_scales(p, scales);
    const ByteVec high0 = load16(p + 16), high1 = load16(p + 32);
    for (int pair = 0; pair < 4; ++pair) {
      const ByteVec q0 = load16(p + 48 + 32 * pair), q1 = load16(p + 64 + 32 * pair);
      const ByteVec even = bytes(static_cast<uint8_t>(1 << (2 * pair)));
      const ByteVec odd = bytes(static_cast<uint8_t>(2 << (2 * pair)));
      const FloatVec s0 = splat(scales[2 * pair]), m0 = splat(scales[8 + 2 * pair]);
      const FloatVec s1 = splat(scales[2 * pair + 1]), m1 = splat(scales[9 + 2 * pair]);
      const int k = 64 * pair;
      emit_affine(sink, k, hn::Or(low_nibbles(q0), where_bits(high0, even, 16)), s0, m0);
      emit_affine(sink, k + 16, hn::Or(low_nibbles(q1), where_bits(high1, even, 16)), s0, m0);
      emit_affine(sink, k + 32, hn::Or(high_nibbles(q0), where_bits(high0, odd, 16)), s1, m1);
      emit_affine(sink, k + 48, hn::Or(high_nibbles(q1), where_bits(high1, odd, 16)), s1, m1);
    }
  }
};

struct DecoderQ6_K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = sizeof(BlockQ6_K);
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    alignas(64) float scales[16];
    scale16(as_signed(load16(p + 192)), half_at(p + 208), scales);
    for (int half = 0; half < 2; ++half) {
      const float* s = scales + 8 * half;
      pair<0>(sink, 128 * half, p + 64 * half, p + 128 + 32 * half, s);
      pair<1>(sink, 128 * half, p + 64 * half, p + 128 + 32 * half, s);
      pair<2>(sink, 128 * half, p + 64 * half, p + 128 + 32 * half, s);
      pair<3>(sink, 128 * half, p + 64 * half, p + 128 + 32 * half, s);
    }
  }

 private:
  template <int quarter, class Sink>
  static HWY_INLINE void pair(Sink& sink, int first, const uint8_t* low, const uint8_t* high,
                              const float* scales) {
    for (int i = 0; i < 2; ++i) {
      const ByteVec four =
          field<quarter / 2 * 4>(load16(low + 32 * (quarter % 2) + 16 * i), uint8_t{15});
      const ByteVec two = field<2 * quarter>(load16(high + 16 * i), uint8_t{3});
      const int s = 2 * quarter + i;
      emit_scaled(sink, first + 16 * s, minus(hn::Or(four, hn::ShiftLeft<4>(two)), 32),
                  splat(scales[s]));
    }
  }
};

// Calls fn with the decoder of `type`.
template <class Fn>
HWY_INLINE void with_decoder(DType type, const Fn& fn) {
  switch (type) {
    case DType::kF32:
      return fn(DecoderF32());
    case DType::kF16:
      return fn(DecoderF16());
    case DType::kBF16:
      return fn(DecoderBF16());
    case DType::kQ4_0:
      return fn(DecoderQ4_0());
    case DType::kQ4_1:
      return fn(DecoderQ4_1());
    case DType::kQ5_0:
      return fn(DecoderQ5_0());
    case DType::kQ5_1:
      return fn(DecoderQ5_1());
    case DType::kQ8_0:
      return fn(DecoderQ8_0());
    case DType::kQ2_K:
      return fn(DecoderQ2_K());
    case DType::kQ3_K:
      return fn(DecoderQ3_K());
    case DType::kQ4_K:
      return fn(DecoderQ4_K());
    case DType::kQ5_K:
      return fn(DecoderQ5_K());
    case DType::kQ6_K:
      return fn(DecoderQ6_K());
  }
}

// The last elements of a row of a plain type, fewer than 16, padded with zeros to 16.
template <class Decoder>
HWY_INLINE void decode_tail(const uint8_t* p, int64_t count, float* out16) {
  uint8_t padded[Decoder::kBytes] = {};
  memcpy(padded, p, static_cast<size_t>(count * (Decoder::kBytes / Decoder::kElements)));
  StoreSink sink{out16};
  Decoder::decode(padded, sink);
}

// `count` elements into `out`, which is padded with zeros to a multiple of 16 elements.
template <class Decoder>
HWY_INLINE void decode_padded(const uint8_t* p, int64_t count, float* out) {
  int64_t k = 0;
  for (; k + Decoder::kElements <= count; k += Decoder::kElements, p += Decoder::kBytes) {
    StoreSink sink{out + k};
    Decoder::decode(p, sink);
  }
  if constexpr (Decoder::kElements == 16) {
    if (k < count) decode_tail<Decoder>(p, count - k, out + k);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#endif
