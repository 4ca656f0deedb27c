// SPDX-License-Identifier: Apache-2.0
// The integer kernels with 8-bit matrix multiplication. The file is compiled for it, so it contains
// nothing else.
#include "cpu/linear/linear_int8_table_inl.h"

namespace spillway {
namespace {

// Multiplies one row pair's sixteen bytes of a skewed sub-block: columns 8h to 8h + 7 and 16 + 8h
// to 23 + 8h.
#define SPW_PIECE(pair, temp, h, low, high)               \
  "ldr %q[t" #temp "], [%[sub], #(" #pair " * 32 + " #h   \
  " * 16)]\n"                                             \
  "shl %[u" #temp "].16b, %[t" #temp                      \
  "].16b, #4\n"                                           \
  "usmmla %[r" #pair "].4s, %[t" #temp "].16b, %[x" #high \
  "].16b\n"                                               \
  "usmmla %[r" #pair "].4s, %[u" #temp "].16b, %[x" #low "].16b\n"
#define SPW_PIECES(h, low, high) \
  SPW_PIECE(0, 0, h, low, high)  \
  SPW_PIECE(1, 1, h, low, high)  \
  SPW_PIECE(2, 2, h, low, high)  \
  SPW_PIECE(3, 3, h, low, high)  \
  SPW_PIECE(4, 0, h, low, high)  \
  SPW_PIECE(5, 1, h, low, high) SPW_PIECE(6, 2, h, low, high) SPW_PIECE(7, 3, h, low, high)

struct I8mm {
  static constexpr bool kMixedSigns = true;  // it can multiply unsigned by signed bytes

  // Adds the sums of sixteen rows of a skewed sub-block to r[pair], for a token that is there
  // twice. It is assembly, which is a quarter faster, because g++ 12 copies and spills registers
  // here.
  [[gnu::always_inline]] static inline void skewed_dots(const uint8_t* sub, const int8x16_t* x,
                                                        int32x4_t* r) {
    int8x16_t t0, t1, t2, t3, u0, u1, u2, u3;
    asm(SPW_PIECES(0, 0, 2) SPW_PIECES(1, 1, 3)
        : [r0] "+w"(r[0]), [r1] "+w"(r[1]), [r2] "+w"(r[2]), [r3] "+w"(r[3]), [r4] "+w"(r[4]),
          [r5] "+w"(r[5]), [r6] "+w"(r[6]), [r7] "+w"(r[7]), [t0] "=&w"(t0), [t1] "=&w"(t1),
          [t2] "=&w"(t2), [t3] "=&w"(t3), [u0] "=&w"(u0), [u1] "=&w"(u1), [u2] "=&w"(u2),
          [u3] "=&w"(u3)
        : [sub] "r"(sub), [x0] "w"(x[0]), [x1] "w"(x[1]), [x2] "w"(x[2]), [x3] "w"(x[3]),
          "m"(*reinterpret_cast<const uint8_t(*)[256]>(sub)));
  }

  template <bool kUnsigned>
  [[gnu::always_inline]] static inline int32x4_t product(int32x4_t acc, int8x16_t w, int8x16_t x) {
    if constexpr (kUnsigned) return vusmmlaq_s32(acc, vreinterpretq_u8_s8(w), x);
    return vmmlaq_s32(acc, w, x);
  }

  // Multiplies two rows with a token that is there twice; rows() takes the sums of two pairs of
  // rows.
  template <bool kUnsigned>
  [[gnu::always_inline]] static inline int32x4_t dot(int32x4_t acc, int8x16_t w, int8x16_t x) {
    return product<kUnsigned>(acc, w, x);
  }
  [[gnu::always_inline]] static inline int32x4_t rows(int32x4_t first, int32x4_t second) {
    return vuzp1q_s32(first, second);
  }

  // The product of two rows and two tokens: (row 0, token 0), (0, 1), (1, 0), (1, 1).
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
