// SPDX-License-Identifier: Apache-2.0
// The integer kernels with 8-bit matrix multiplication; compiled for it, so nothing else here.
#include "cpu/linear_int8_inl.h"

namespace spillway {
namespace {

struct I8mm {
  static constexpr bool kSkewed = true;  // it can multiply unsigned by signed bytes

  template <bool kUnsigned>
  [[gnu::always_inline]] static inline int32x4_t product(int32x4_t acc, int8x16_t w, int8x16_t x) {
    if constexpr (kUnsigned) return vusmmlaq_s32(acc, vreinterpretq_u8_s8(w), x);
    return vmmlaq_s32(acc, w, x);
  }

  // Two rows times a token that is there twice; rows() takes the sums of two such pairs.
  template <bool kUnsigned>
  [[gnu::always_inline]] static inline int32x4_t dot(int32x4_t acc, int8x16_t w, int8x16_t x) {
    return product<kUnsigned>(acc, w, x);
  }
  [[gnu::always_inline]] static inline int32x4_t rows(int32x4_t first, int32x4_t second) {
    return vuzp1q_s32(first, second);
  }

  // Two rows times two tokens: (row 0, token 0), (0, 1), (1, 0), (1, 1).
  using Tile = int32x4_t;
  using Columns = int8x16_t;
  [[gnu::always_inline]] static inline Columns columns(int8x16_t pair) { return pair; }
  template <bool kUnsigned>
  [[gnu::always_inline]] static inline void multiply(Tile& acc, int8x16_t w, Columns x) {
    acc = product<kUnsigned>(acc, w, x);
  }
  [[gnu::always_inline]] static inline int32x4_t sums(Tile acc) { return acc; }
};

}  // namespace

constinit const Int8Kernels kI8mmKernels = kernels_of<I8mm>();

}  // namespace spillway
