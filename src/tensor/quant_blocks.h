// SPDX-License-Identifier: Apache-2.0
// Defines block-quantized formats: GGUF's, byte for byte as in a file (little endian), and G4, our
// own, which exists in memory only.
//
// Simple types have 32 elements with one scale d (and a minimum m for the _1 kinds). In the 4- and
// 5-bit types, byte i of `nibbles` holds element i in its low and element i + 16 in its high half;
// bit i of `high` is the fifth bit of element i. K types have 256 elements in sub-blocks of 16 or
// 32, whose scales are themselves quantized.
#pragma once

#include <cstdint>

#include "tensor/half.h"

namespace spillway {

// value = d * (q - 8)
struct BlockQ4_0 {
  static constexpr int kElements = 32;
  Half d;
  uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ4_0) == 18);

// value = d * q + m
struct BlockQ4_1 {
  static constexpr int kElements = 32;
  Half d;
  Half m;
  uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

// value = d * (q - 16), q has five bits
struct BlockQ5_0 {
  static constexpr int kElements = 32;
  Half d;
  uint8_t high[4];
  uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ5_0) == 22);

// value = d * q + m, q has five bits
struct BlockQ5_1 {
  static constexpr int kElements = 32;
  Half d;
  Half m;
  uint8_t high[4];
  uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ5_1) == 24);

// value = d * q
struct BlockQ8_0 {
  static constexpr int kElements = 32;
  Half d;
  int8_t q[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

// 16 sub-blocks of 16: value = d * (scales[s] & 15) * q - dmin * (scales[s] >> 4), q has two bits.
// Byte i of q[32 * h ..] holds elements 128h + i, +32, +64, +96 from its lowest bits up.
struct BlockQ2_K {
  static constexpr int kElements = 256;
  uint8_t scales[16];
  uint8_t q[64];
  Half d;
  Half dmin;
};
static_assert(sizeof(BlockQ2_K) == 84);

// 16 sub-blocks of 16: value = d * (scale[s] - 32) * (q - 4). Two low bits as in Q2_K; the third
// bit of element 32k + i is bit k of high[i]. The 6-bit scales: low nibbles of bytes 0-7 are scales
// 0-7, high nibbles 8-15; bits 4-5 of scale s are in byte 8 + s % 4, at bit 2 * (s / 4).
struct BlockQ3_K {
  static constexpr int kElements = 256;
  uint8_t high[32];
  uint8_t q[64];
  uint8_t scales[12];
  Half d;
};
static_assert(sizeof(BlockQ3_K) == 110);

// 8 sub-blocks of 32: value = d * scale[s] * q - dmin * min[s], 6-bit scales and minima (see
// unpack_k_scales). Byte i of q[32 * p ..] holds element 64p + i in its low, 64p + 32 + i in its
// high half.
struct BlockQ4_K {
  static constexpr int kElements = 256;
  Half d;
  Half dmin;
  uint8_t scales[12];
  uint8_t q[128];
};
static_assert(sizeof(BlockQ4_K) == 144);

// Like Q4_K; the fifth bit of element 32k + i is bit k of high[i].
struct BlockQ5_K {
  static constexpr int kElements = 256;
  Half d;
  Half dmin;
  uint8_t scales[12];
  uint8_t high[32];
  uint8_t q[128];
};
static_assert(sizeof(BlockQ5_K) == 176);

// 16 sub-blocks of 16: value = d * scales[s] * (q - 32), q has six bits. For each half h of 128
// elements: low[64h + i] holds the low 4 bits of element 128h + i (low nibble) and of 128h + 64 + i
// (high nibble), i < 64; high[32h + i] holds the top bits of elements 128h + i, +32, +64, +96 from
// its lowest bits up.
struct BlockQ6_K {
  static constexpr int kElements = 256;
  uint8_t low[128];
  uint8_t high[64];
  int8_t scales[16];
  Half d;
};
static_assert(sizeof(BlockQ6_K) == 210);

// The group-wise format of FlexGen (section 5): value = d * q + m, one scale and one minimum for 64
// elements of a row. Two halves of 32, each with nibbles as in Q4_1: byte 16h + i holds element
// 32h + i in its low and 32h + 16 + i in its high half.
struct BlockG4 {
  static constexpr int kElements = 64;
  Half d;
  Half m;
  uint8_t nibbles[32];
};
static_assert(sizeof(BlockG4) == 36);

// The 8 six-bit scales and 8 six-bit minima of Q4_K and Q5_K: bytes 0-3 hold scales 0-3, bytes 4-7
// minima 0-3 (low six bits); bytes 8-11 hold the low nibbles of scales and of minima 4-7, whose top
// two bits are the top bits of bytes 0-3 and 4-7.
inline void unpack_k_scales(const uint8_t packed[12], uint8_t scales[8], uint8_t minima[8]) {
  for (int i = 0; i < 4; ++i) {
    scales[i] = packed[i] & 63;
    minima[i] = packed[i + 4] & 63;
    scales[i + 4] = static_cast<uint8_t>((packed[i + 8] & 15) | ((packed[i] >> 6) << 4));
    minima[i + 4] = static_cast<uint8_t>((packed[i + 8] >> 4) | ((packed[i + 4] >> 6) << 4));
  }
}

}  // namespace spillway
