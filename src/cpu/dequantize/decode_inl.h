// SPDX-License-Identifier: Apache-2.0
// Vectorised decoders of every stored type, bit-equal to dequantize_reference.
//
// A decoder turns one block into vectors of kLanes consecutive floats and passes them, in the order
// of the elements, to a sink: sink(k, values), where k is the first element's index in the block.
// Uses differ in the sink: it stores the values, or multiplies them with activations and adds up.
#if defined(SPILLWAY_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_CPU_DECODE_INL_H_
#undef SPILLWAY_CPU_DECODE_INL_H_
#else
#define SPILLWAY_CPU_DECODE_INL_H_
#endif

#include <cstddef>

#include "cpu/simd_inl.h"
#include "tensor/dtype.h"
#include "tensor/quant_blocks.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

using ByteTag = hn::FixedTag<uint8_t, 16>;
using ByteVec = hn::Vec<ByteTag>;
using SignedTag = hn::FixedTag<int8_t, 16>;
using SignedVec = hn::Vec<SignedTag>;

HWY_INLINE ByteVec load16(const uint8_t* p) { return hn::LoadU(ByteTag(), p); }
HWY_INLINE ByteVec bytes(uint8_t value) { return hn::Set(ByteTag(), value); }
HWY_INLINE SignedVec as_signed(ByteVec v) { return hn::BitCast(SignedTag(), v); }
HWY_INLINE ByteVec low_nibbles(ByteVec v) { return hn::And(v, bytes(15)); }
HWY_INLINE ByteVec high_nibbles(ByteVec v) { return hn::ShiftRight<4>(v); }
HWY_INLINE SignedVec minus(ByteVec v, int8_t offset) {
  return hn::Sub(as_signed(v), hn::Set(SignedTag(), offset));
}
// Returns `value` in the bytes where v has any of `bits`, else 0.
HWY_INLINE ByteVec where_bits(ByteVec v, ByteVec bits, uint8_t value) {
  return hn::And(hn::VecFromMask(ByteTag(), hn::TestBit(v, bits)), bytes(value));
}

// Converts the 16 integers of q to floats and calls emit(index, values).
template <class Emit, class D = FloatTag>
HWY_INLINE void widen16(SignedVec q, const Emit& emit) {
  const D df;
  const hn::Rebind<int32_t, D> di32;
  const hn::Half<SignedTag> half;
  if constexpr (kLanes == 16) {
    emit(0, hn::ConvertTo(df, hn::PromoteTo(di32, q)));
  } else if constexpr (kLanes == 8) {
    emit(0, hn::ConvertTo(df, hn::PromoteTo(di32, hn::LowerHalf(half, q))));
    emit(8, hn::ConvertTo(df, hn::PromoteTo(di32, hn::UpperHalf(half, q))));
  } else {
    const hn::FixedTag<int16_t, 8> di16;
    const hn::Half<decltype(di16)> half16;
    const auto low = hn::PromoteTo(di16, hn::LowerHalf(half, q));
    const auto high = hn::PromoteTo(di16, hn::UpperHalf(half, q));
    emit(0, hn::ConvertTo(df, hn::PromoteTo(di32, hn::LowerHalf(half16, low))));
    emit(4, hn::ConvertTo(df, hn::PromoteTo(di32, hn::UpperHalf(half16, low))));
    emit(8, hn::ConvertTo(df, hn::PromoteTo(di32, hn::LowerHalf(half16, high))));
    emit(12, hn::ConvertTo(df, hn::PromoteTo(di32, hn::UpperHalf(half16, high))));
  }
}

HWY_INLINE FloatVec splat(float value) { return hn::Set(FloatTag(), value); }

// These turn integers into values: scale * (q - offset), or scale * q + low, with q < 128. Multiply
// and add are rounded separately, as in the reference.
template <class Sink>
struct EmitScaled {
  Sink& sink;
  int first;
  FloatVec scale;
  HWY_INLINE void operator()(int i, FloatVec q) const { sink(first + i, hn::Mul(scale, q)); }
};
template <class Sink>
struct EmitAffine {
  Sink& sink;
  int first;
  FloatVec scale, low;
  HWY_INLINE void operator()(int i, FloatVec q) const {
    sink(first + i, hn::Add(hn::Mul(scale, q), low));
  }
};

// A sink for which the sign of a zero does not matter (kExactZeros false) gets a cheaper conversion
// where vectors are short: a byte q becomes the float base + q by being put into its mantissa, and
// one fused multiply-add takes the base out again. For finite scales that is bit-equal except for
// the sign of zero, because scale * (base + offset) is exact: no scale has more than 19 significant
// bits.
template <class Sink>
inline constexpr bool kThroughMantissa = !Sink::kExactZeros && kLanes == 4 && kFusedMultiplyAdd;

// These compute scale * t + shift (+ low) for four vectors t of base + q.
template <class Sink>
struct EmitShifted {
  Sink& sink;
  int first;
  FloatVec scale, shift;
  HWY_INLINE void operator()(int i, FloatVec t) const {
    sink(first + i, hn::MulAdd(scale, t, shift));
  }
};
template <class Sink>
struct EmitShiftedAffine {
  Sink& sink;
  int first;
  FloatVec scale, shift, low;
  HWY_INLINE void operator()(int i, FloatVec t) const {
    sink(first + i, hn::Add(hn::MulAdd(scale, t, shift), low));
  }
};

// Calls emit(index, base + q): base 128 with q < 128 in the third byte of the float, or base 32768
// with q < 256 in its second.
template <int base, class Emit, class D = FloatTag>
HWY_INLINE void widen16_mantissa(ByteVec q, const Emit& emit) {
  static_assert(base == 128 || base == 32768);
  const ByteTag d8;
  const hn::Repartition<uint16_t, ByteTag> d16;
  const auto zero8 = hn::Zero(d8);
  const auto low8 = base == 128 ? q : zero8;
  const auto high8 = base == 128 ? hn::Set(d8, uint8_t{0x43}) : q;
  const auto a = hn::BitCast(d16, hn::InterleaveLower(d8, low8, high8));
  const auto b = hn::BitCast(d16, hn::InterleaveUpper(d8, low8, high8));
  const auto top = hn::Set(d16, uint16_t{0x4700});
  const auto zero = hn::Zero(d16);
  const D df;
  if constexpr (base == 128) {
    emit(0, hn::BitCast(df, hn::InterleaveLower(d16, zero, a)));
    emit(4, hn::BitCast(df, hn::InterleaveUpper(d16, zero, a)));
    emit(8, hn::BitCast(df, hn::InterleaveLower(d16, zero, b)));
    emit(12, hn::BitCast(df, hn::InterleaveUpper(d16, zero, b)));
  } else {
    emit(0, hn::BitCast(df, hn::InterleaveLower(d16, a, top)));
    emit(4, hn::BitCast(df, hn::InterleaveUpper(d16, a, top)));
    emit(8, hn::BitCast(df, hn::InterleaveLower(d16, b, top)));
    emit(12, hn::BitCast(df, hn::InterleaveUpper(d16, b, top)));
  }
}

// Emits scale * (q - offset), q < 128.
template <int offset, class Sink>
HWY_INLINE void emit_scaled(Sink& sink, int first, ByteVec q, FloatVec scale) {
  if constexpr (kThroughMantissa<Sink>) {
    const FloatVec shift = hn::Mul(scale, splat(-128.0F - offset));
    widen16_mantissa<128>(q, EmitShifted<Sink>{sink, first, scale, shift});
  } else {
    widen16(minus(q, offset), EmitScaled<Sink>{sink, first, scale});
  }
}
// Emits scale * q, q signed; scale has at most 15 significant bits.
template <class Sink>
HWY_INLINE void emit_signed(Sink& sink, int first, ByteVec q, FloatVec scale) {
  if constexpr (kThroughMantissa<Sink>) {
    const FloatVec shift = hn::Mul(scale, splat(-32768.0F - 128.0F));
    widen16_mantissa<32768>(hn::Xor(q, bytes(0x80)), EmitShifted<Sink>{sink, first, scale, shift});
  } else {
    widen16(as_signed(q), EmitScaled<Sink>{sink, first, scale});
  }
}
// Emits scale * q + low, q < 128.
template <class Sink>
HWY_INLINE void emit_affine(Sink& sink, int first, ByteVec q, FloatVec scale, FloatVec low) {
  if constexpr (kThroughMantissa<Sink>) {
    const FloatVec shift = hn::Mul(scale, splat(-128.0F));
    widen16_mantissa<128>(q, EmitShiftedAffine<Sink>{sink, first, scale, shift, low});
  } else {
    widen16(as_signed(q), EmitAffine<Sink>{sink, first, scale, low});
  }
}

// Stores the values it is given.
struct StoreSink {
  static constexpr bool kExactZeros = true;
  float* out;
  HWY_INLINE void operator()(int k, FloatVec values) const {
    hn::StoreU(values, FloatTag(), out + k);
  }
};

struct DecoderF32 {
  static constexpr int kElements = 16;
  static constexpr int kBytes = 64;
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    for (int i = 0; i < 16; i += kLanes) sink(i, load_f32(p + 4 * i));
  }
};

struct DecoderF16 {
  static constexpr int kElements = 16;
  static constexpr int kBytes = 32;
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    for (int i = 0; i < 16; i += kLanes) sink(i, load_f16(p + 2 * i));
  }
};

struct DecoderBF16 {
  static constexpr int kElements = 16;
  static constexpr int kBytes = 32;
  template <class Sink, class D = FloatTag>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    if constexpr (kLanes == 4) {
      // Interleaving with zeros is one instruction where PromoteTo takes two.
      const D df;
      const hn::FixedTag<uint16_t, 8> d16;
      const auto zero = hn::Zero(d16);
      const auto a = hn::BitCast(d16, load16(p)), b = hn::BitCast(d16, load16(p + 16));
      sink(0, hn::BitCast(df, hn::InterleaveLower(d16, zero, a)));
      sink(4, hn::BitCast(df, hn::InterleaveUpper(d16, zero, a)));
      sink(8, hn::BitCast(df, hn::InterleaveLower(d16, zero, b)));
      sink(12, hn::BitCast(df, hn::InterleaveUpper(d16, zero, b)));
    } else {
      for (int i = 0; i < 16; i += kLanes) sink(i, load_bf16(p + 2 * i));
    }
  }
};

struct DecoderQ4_0 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = sizeof(BlockQ4_0);
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    const FloatVec d = splat(half_at(p));
    const ByteVec q = load16(p + 2);
    emit_scaled<8>(sink, 0, low_nibbles(q), d);
    emit_scaled<8>(sink, 16, high_nibbles(q), d);
  }
};

struct DecoderQ4_1 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = sizeof(BlockQ4_1);
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    const FloatVec d = splat(half_at(p)), m = splat(half_at(p + 2));
    const ByteVec q = load16(p + 4);
    emit_affine(sink, 0, low_nibbles(q), d, m);
    emit_affine(sink, 16, high_nibbles(q), d, m);
  }
};

// Returns 16 in the bytes where bit i of the 32 bits at `high` is set, for elements [first, first +
// 16).
template <int first>
HWY_INLINE ByteVec fifth_bits(const uint8_t* high) {
  alignas(16) static constexpr uint8_t kByteOf[16] = {0, 0, 0, 0, 0, 0, 0, 0,
                                                      1, 1, 1, 1, 1, 1, 1, 1};
  alignas(16) static constexpr uint8_t kBitOf[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                     1, 2, 4, 8, 16, 32, 64, 128};
  const ByteVec index = hn::Add(hn::Load(ByteTag(), kByteOf), bytes(first / 8));
  // This reads 16 bytes although 4 are needed: the nibbles follow within the block.
  const ByteVec spread = hn::TableLookupBytes(load16(high), index);
  return where_bits(spread, hn::Load(ByteTag(), kBitOf), 16);
}

struct DecoderQ5_0 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = sizeof(BlockQ5_0);
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    const FloatVec d = splat(half_at(p));
    const ByteVec q = load16(p + 6);
    emit_scaled<16>(sink, 0, hn::Or(low_nibbles(q), fifth_bits<0>(p + 2)), d);
    emit_scaled<16>(sink, 16, hn::Or(high_nibbles(q), fifth_bits<16>(p + 2)), d);
  }
};

struct DecoderQ5_1 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = sizeof(BlockQ5_1);
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    const FloatVec d = splat(half_at(p)), m = splat(half_at(p + 2));
    const ByteVec q = load16(p + 8);
    emit_affine(sink, 0, hn::Or(low_nibbles(q), fifth_bits<0>(p + 4)), d, m);
    emit_affine(sink, 16, hn::Or(high_nibbles(q), fifth_bits<16>(p + 4)), d, m);
  }
};

struct DecoderQ8_0 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = sizeof(BlockQ8_0);
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    const FloatVec d = splat(half_at(p));
    emit_signed(sink, 0, load16(p + 2), d);
    emit_signed(sink, 16, load16(p + 18), d);
  }
};

struct DecoderG4 {
  static constexpr int kElements = 64;
  static constexpr int kBytes = sizeof(BlockG4);
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    const FloatVec d = splat(half_at(p)), m = splat(half_at(p + 2));
    const ByteVec first = load16(p + 4), second = load16(p + 20);
    emit_affine(sink, 0, low_nibbles(first), d, m);
    emit_affine(sink, 16, high_nibbles(first), d, m);
    emit_affine(sink, 32, low_nibbles(second), d, m);
    emit_affine(sink, 48, high_nibbles(second), d, m);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#endif
