// SPDX-License-Identifier: Apache-2.0
#include "cpu/dequantize/decode_row.h"

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/dequantize/decode_row.cc"
#include <hwy/foreach_target.h>
// These must be included after foreach_target.
#include <hwy/highway.h>

#include "cpu/dequantize/decode_k_inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway {
namespace HWY_NAMESPACE {

struct AddSink {
  static constexpr bool kExactZeros = true;
  float* out;
  HWY_INLINE void operator()(int k, FloatVec values) const {
    const FloatTag df;
    hn::StoreU(hn::Add(hn::LoadU(df, out + k), values), df, out + k);
  }
};

template <class Decoder, class Sink>
HWY_INLINE void decode_blocks(const uint8_t* p, float* out, int64_t count) {
  int64_t k = 0;
  for (; k + Decoder::kElements <= count; k += Decoder::kElements, p += Decoder::kBytes) {
    Sink sink{out + k};
    Decoder::decode(p, sink);
  }
  if constexpr (Decoder::kElements == 16) {
    if (k == count) return;
    alignas(64) float tail[16], sum[16] = {};
    decode_tail<Decoder>(p, count - k, tail);
    const size_t bytes = static_cast<size_t>(count - k) * sizeof(float);
    memcpy(sum, out + k, bytes);
    Sink sink{sum};
    for (int i = 0; i < 16; i += kLanes) sink(i, hn::Load(FloatTag(), tail + i));
    memcpy(out + k, sum, bytes);
  }
}

void decode_store(DType type, const uint8_t* stored, float* out, int64_t count) {
  with_decoder(type, [&](auto decoder) HWY_ATTR {
    decode_blocks<decltype(decoder), StoreSink>(stored, out, count);
  });
}

void decode_add(DType type, const uint8_t* stored, float* out, int64_t count) {
  with_decoder(type, [&](auto decoder) HWY_ATTR {
    decode_blocks<decltype(decoder), AddSink>(stored, out, count);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace spillway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway {

HWY_EXPORT(decode_store);
HWY_EXPORT(decode_add);

void decode_row(DType type, const std::byte* stored, float* out, int64_t count) {
  SPW_ASSERT(count >= 0 && count % dtype_info(type).block_elements == 0);
  HWY_DYNAMIC_DISPATCH(decode_store)
  (type, reinterpret_cast<const uint8_t*>(stored), out, count);
}

void decode_row_add(DType type, const std::byte* stored, float* out, int64_t count) {
  SPW_ASSERT(count >= 0 && count % dtype_info(type).block_elements == 0);
  HWY_DYNAMIC_DISPATCH(decode_add)
  (type, reinterpret_cast<const uint8_t*>(stored), out, count);
}

}  // namespace spillway
#endif
