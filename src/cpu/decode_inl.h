// SPDX-License-Identifier: Apache-2.0
// Vectorised decoding of every stored type, bit-equal to dequantize_reference.
//
// A decoder turns one block into vectors of kLanes consecutive floats and hands them, in the order
// of the elements, to a sink: sink(k, values) with k the first element's index in the block. The
// sink is what differs between uses: store, or multiply with activations and add up.
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
// `value` where v has any of `bits`, else 0.
HWY_INLINE ByteVec where_bits(ByteVec v, ByteVec bits, uint8_t value) {
  return hn::And(hn::VecFromMask(ByteTag(), hn::TestBit(v, bits)), bytes(value));
}

// The 16 integers of q as floats: emit(index, values).
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

// Two ways from integer to value. Multiply and add are rounded one by one, as in the reference.
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
  FloatVec scale, offset;
  HWY_INLINE void operator()(int i, FloatVec q) const {
    sink(first + i, hn::Add(hn::Mul(scale, q), offset));
  }
};
template <class Sink>
HWY_INLINE void emit_scaled(Sink& sink, int first, SignedVec q, FloatVec scale) {
  widen16(q, EmitScaled<Sink>{sink, first, scale});
}
template <class Sink>
HWY_INLINE void emit_affine(Sink& sink, int first, ByteVec q, FloatVec scale, FloatVec offset) {
  widen16(as_signed(q), EmitAffine<Sink>{sink, first, scale, offset});
}
HWY_INLINE FloatVec splat(float value) { return hn::Set(FloatTag(), value); }

// Stores what it is given.
struct StoreSink {
  float* out;
  HWY_INLINE void operator()(int k, FloatVec values) const {
    hn::StoreU(values, FloatTag(), out + k);
  }
};

template <class Load, int kSize>
struct PlainDecoder {
  static constexpr int kElements = 16;
  static constexpr int kBytes = 16 * kSize;
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    for (int i = 0; i < 16; i += kLanes) sink(i, Load::load(p + i * kSize));
  }
};
struct LoadF32 {
  static HWY_INLINE FloatVec load(const uint8_t* p) { return load_f32(p); }
};
struct LoadF16 {
  static HWY_INLINE FloatVec load(const uint8_t* p) { return load_f16(p); }
};
struct LoadBF16 {
  static HWY_INLINE FloatVec load(const uint8_t* p) { return load_bf16(p); }
};
using DecoderF32 = PlainDecoder<LoadF32, 4>;
using DecoderF16 = PlainDecoder<LoadF16, 2>;
using DecoderBF16 = PlainDecoder<LoadBF16, 2>;

struct DecoderQ4_0 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = sizeof(BlockQ4_0);
  template <class Sink>
  static HWY_INLINE void decode(const uint8_t* p, Sink& sink) {
    const FloatVec d = splat(half_at(p));
    const ByteVec q = load16(p + 2);
    emit_scaled(sink, 0, minus(low_nibbles(q), 8), d);
    emit_scaled(sink, 16, minus(high_nibbles(q), 8), d);
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

// 16 where bit i of the 32 bits at `high` is set, for elements [first, first + 16).
template <int first>
HWY_INLINE ByteVec fifth_bits(const uint8_t* high) {
  alignas(16) static constexpr uint8_t kByteOf[16] = {0, 0, 0, 0, 0, 0, 0, 0,
                                                      1, 1, 1, 1, 1, 1, 1, 1};
  alignas(16) static constexpr uint8_t kBitOf[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                     1, 2, 4, 8, 16, 32, 64, 128};
  const ByteVec index = hn::Add(hn::Load(ByteTag(), kByteOf), bytes(first / 8));
  // Reads 16 bytes where 4 are wanted: the nibbles follow within the block.
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
    emit_scaled(sink, 0, minus(hn::Or(low_nibbles(q), fifth_bits<0>(p + 2)), 16), d);
    emit_scaled(sink, 16, minus(hn::Or(high_nibbles(q), fifth_bits<16>(p + 2)), 16), d);
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
    emit_scaled(sink, 0, as_signed(load16(p + 2)), d);
    emit_scaled(sink, 16, as_signed(load16(p + 18)), d);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#endif
