// SPDX-License-Identifier: Apache-2.0
// The integer kernels with 8-bit dot products. The file is compiled for them, so it contains
// nothing else.
#include "cpu/linear/linear_int8_table_inl.h"

namespace spillway {
namespace {

struct Dotprod {
  static constexpr bool kMixedSigns = false;  // it has signed bytes only

  // Multiplies two rows with a token that is there twice, four columns to a lane; rows() adds the
  // lanes.
  template <bool>
  [[gnu::always_inline]] static inline int32x4_t dot(int32x4_t acc, int8x16_t w, int8x16_t x) {
    return vdotq_s32(acc, w, x);
  }
  [[gnu::always_inline]] static inline int32x4_t rows(int32x4_t first, int32x4_t second) {
    return vpaddq_s32(first, second);
  }

  // The product of two rows and two tokens, each token by itself until sums() orders them (row,
  // token).
  struct Tile {
    int32x4_t token[2];
  };
  struct Columns {
    int8x16_t token[2];
  };
  [[gnu::always_inline]] static inline Columns columns(int8x16_t pair) {
    const int8x8_t first = vget_low_s8(pair), second = vget_high_s8(pair);
    return {{vcombine_s8(first, first), vcombine_s8(second, second)}};
  }
  template <bool>
  [[gnu::always_inline]] static inline void multiply(Tile& acc, int8x16_t w, const Columns& x) {
    acc.token[0] = vdotq_s32(acc.token[0], w, x.token[0]);
    acc.token[1] = vdotq_s32(acc.token[1], w, x.token[1]);
  }
  [[gnu::always_inline]] static inline int32x4_t sums(const Tile& acc) {
    const int32x4_t by_token = vpaddq_s32(acc.token[0], acc.token[1]);
    return vzip1q_s32(by_token, vextq_s32(by_token, by_token, 2));
  }
};

}  // namespace

constinit const Int8Kernels kDotprodKernels = kernels_of<Dotprod>();

}  // namespace spillway
