// SPDX-License-Identifier: Apache-2.0
// Decoders of the K types (256 elements with quantized sub-block scales) and the choice by type.
#if defined(SPILLWAY_CPU_DECODE_K_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_DECODE_K_INL_H_
#undef SPILLWAY_CPU_DECODE_K_INL_H_
#else
#define SPILLWAY_CPU_DECODE_K_INL_H_
#endif

#include "cpu/dequantize/decode_inl.h"

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
// Computes out[i] = scale * q[i] for 16 small integers.
HWY_INLINE void scale16(SignedVec q, float scale, float* out) {
  widen16(q, StoreScaled{out, splat(scale)});
}

// Returns v >> shift & mask, byte by byte; `mask` fits into what is left of a byte.
HWY_INLINE ByteVec field(ByteVec v, int shift, uint8_t mask) {
  const hn::Repartition<uint16_t, ByteTag> d16;
  return hn::And(hn::BitCast(ByteTag(), hn::ShiftRightSame(hn::BitCast(d16, v), shift)),
                 bytes(mask));
}
HWY_INLINE ByteVec bit(int i) { return bytes(static_cast<uint8_t>(1 << i)); }

// A K decoder works in two steps, so that the decoding of several rows can be interleaved (the sums
// of a single row would wait for each other): scales() unpacks the sub-block scales into 32 floats,
// and part() emits elements [32 i, 32 i + 32). Minima are stored negated: x - y is x + (-y), bit
// for bit.
inline constexpr int kScaleFloats = 32;

// Decodes all eight parts of one block, in order.
template <class Decoder, class Sink>
HWY_INLINE void decode_parts(const uint8_t* p, Sink& sink) {
  alignas(64) float scales[kScaleFloats];
  Decoder::scales(p, scales);
  for (int i = 0; i < 8; ++i) Decoder::part(p, scales, i, sink);
}

struct DecoderQ2_K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = sizeof(BlockQ2_K);
  static HWY_INLINE void scales(const uint8_t* p, float* out) {
    const ByteVec packed = load16(p);
    scale16(as_signed(low_nibbles(packed)), half_at(p + 80), out);
    scale16(as_signed(high_nibbles(packed)), -half_at(p + 82), out + 16);
  }
  template <class Sink>
  static HWY_INLINE void part(const uint8_t* p, const float* scales, int i, Sink& sink) {
    const uint8_t* q = p + 16 + 32 * (i / 4);
    const int shift = 2 * (i % 4);
    emit_affine(sink, 32 * i, field(load16(q), shift, 3), splat(scales[2 * i]),
                splat(scales[16 + 2 * i]));
    emit_affine(sink, 32 * i + 16, field(load16(q + 16), shift, 3), splat(scales[2 * i + 1]),
                splat(scales[17 + 2 * i]));
  }
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    decode_parts<DecoderQ2_K>(p, sink);
  }
};

struct DecoderQ3_K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = sizeof(BlockQ3_K);
  static HWY_INLINE void scales(const uint8_t* p, float* out) {
    const uint32_t a = word_at(p + 96), b = word_at(p + 100), top = word_at(p + 104);
    const uint32_t low = 0x0f0f0f0fU, two = 0x03030303U;
    const ByteVec six =
        words((a & low) | ((top & two) << 4), (b & low) | ((top >> 2 & two) << 4),
              (a >> 4 & low) | ((top >> 4 & two) << 4), (b >> 4 & low) | ((top >> 6 & two) << 4));
    scale16(minus(six, 32), half_at(p + 108), out);
  }
  template <class Sink>
  static HWY_INLINE void part(const uint8_t* p, const float* scales, int i, Sink& sink) {
    const uint8_t* q = p + 32 + 32 * (i / 4);
    const int shift = 2 * (i % 4);
    const ByteVec q0 = hn::Or(field(load16(q), shift, 3), where_bits(load16(p), bit(i), 4));
    const ByteVec q1 =
        hn::Or(field(load16(q + 16), shift, 3), where_bits(load16(p + 16), bit(i), 4));
    emit_scaled<4>(sink, 32 * i, q0, splat(scales[2 * i]));
    emit_scaled<4>(sink, 32 * i + 16, q1, splat(scales[2 * i + 1]));
  }
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    decode_parts<DecoderQ3_K>(p, sink);
  }
};

// Decodes the scales (8 floats, times d) and negated minima (8 floats, times dmin) of Q4_K and
// Q5_K.
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
  static HWY_INLINE void scales(const uint8_t* p, float* out) { decode_k_scales(p, out); }
  template <class Sink>
  static HWY_INLINE void part(const uint8_t* p, const float* scales, int i, Sink& sink) {
    const uint8_t* q = p + 16 + 32 * (i / 2);
    const int shift = 4 * (i % 2);
    const FloatVec scale = splat(scales[i]), low = splat(scales[8 + i]);
    emit_affine(sink, 32 * i, field(load16(q), shift, 15), scale, low);
    emit_affine(sink, 32 * i + 16, field(load16(q + 16), shift, 15), scale, low);
  }
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    decode_parts<DecoderQ4_K>(p, sink);
  }
};

struct DecoderQ5_K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = sizeof(BlockQ5_K);
  static HWY_INLINE void scales(const uint8_t* p, float* out) { decode_k_scales(p, out); }
  template <class Sink>
  static HWY_INLINE void part(const uint8_t* p, const float* scales, int i, Sink& sink) {
    const uint8_t* q = p + 48 + 32 * (i / 2);
    const int shift = 4 * (i % 2);
    const FloatVec scale = splat(scales[i]), low = splat(scales[8 + i]);
    const ByteVec fifth0 = where_bits(load16(p + 16), bit(i), 16);
    const ByteVec fifth1 = where_bits(load16(p + 32), bit(i), 16);
    emit_affine(sink, 32 * i, hn::Or(field(load16(q), shift, 15), fifth0), scale, low);
    emit_affine(sink, 32 * i + 16, hn::Or(field(load16(q + 16), shift, 15), fifth1), scale, low);
  }
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    decode_parts<DecoderQ5_K>(p, sink);
  }
};

struct DecoderQ6_K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = sizeof(BlockQ6_K);
  static HWY_INLINE void scales(const uint8_t* p, float* out) {
    scale16(as_signed(load16(p + 192)), half_at(p + 208), out);
  }
  template <class Sink>
  static HWY_INLINE void part(const uint8_t* p, const float* scales, int i, Sink& sink) {
    const uint8_t* low = p + 64 * (i / 4) + 32 * (i % 2);
    const uint8_t* high = p + 128 + 32 * (i / 4);
    emit_scaled<32>(sink, 32 * i, six_bits(low, high, i % 4), splat(scales[2 * i]));
    emit_scaled<32>(sink, 32 * i + 16, six_bits(low + 16, high + 16, i % 4),
                    splat(scales[2 * i + 1]));
  }
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    decode_parts<DecoderQ6_K>(p, sink);
  }

 private:
  static HWY_INLINE ByteVec six_bits(const uint8_t* low, const uint8_t* high, int quarter) {
    const ByteVec two = field(load16(high), 2 * quarter, 3);
    return hn::Or(field(load16(low), quarter / 2 * 4, 15), hn::ShiftLeft<4>(two));
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
    case DType::kG4:
      return fn(DecoderG4());
  }
}

// Decodes the last elements of a row of a plain type, fewer than 16, padded with zeros to 16.
template <class Decoder>
HWY_INLINE void decode_tail(const uint8_t* p, int64_t count, float* out16) {
  uint8_t padded[Decoder::kBytes] = {};
  memcpy(padded, p, static_cast<size_t>(count * (Decoder::kBytes / Decoder::kElements)));
  StoreSink sink{out16};
  Decoder::decode(padded, sink);
}

// Decodes `count` elements into `out`, which is padded with zeros to a multiple of 16 elements.
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
