// SPDX-License-Identifier: Apache-2.0
#include "tensor/packed_layout.h"

#include <cstring>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "tensor/quant_blocks.h"

namespace spillway {
namespace {

// Elements are moved eight at a time, one byte each in a 64-bit word (little endian).
constexpr uint64_t every_byte(uint64_t byte) { return 0x0101010101010101U * byte; }
constexpr uint64_t kLowHalves = every_byte(15);

uint64_t load8(const uint8_t* from) {
  uint64_t word;
  std::memcpy(&word, from, 8);
  return word;
}
void store8(uint8_t* to, uint64_t word) { std::memcpy(to, &word, 8); }
void or8(uint8_t* to, uint64_t word) { store8(to, load8(to) | word); }

// Move bit i of `bits` to bit 0 of byte i, and back.
uint64_t spread_bits(uint8_t bits) {
  const uint64_t copies = every_byte(bits) & 0x8040201008040201U;
  return ((copies + every_byte(0x7f)) | copies) >> 7 & every_byte(1);
}
uint8_t gather_bits(uint64_t bytes) {
  return static_cast<uint8_t>((bytes & every_byte(1)) * 0x0102040810204080U >> 56);
}

// codes(block, k) returns the stored bits of elements k to k + 7; add_codes() puts them into a
// zeroed block.
template <class Block>
uint64_t simple_nibbles(const Block& b, int k) {
  return load8(b.nibbles + k % 16) >> (k < 16 ? 0 : 4) & kLowHalves;
}
template <class Block>
void add_simple_nibbles(Block& b, int k, uint64_t codes) {
  or8(b.nibbles + k % 16, (codes & kLowHalves) << (k < 16 ? 0 : 4));
}
template <class Block>
constexpr bool kHasHighBytes = std::is_same_v<Block, BlockQ5_0> || std::is_same_v<Block, BlockQ5_1>;

template <class Block>
uint64_t codes(const Block& b, int k) {
  uint64_t word = simple_nibbles(b, k);
  if constexpr (kHasHighBytes<Block>) word |= spread_bits(b.high[k / 8]) << 4;
  return word;
}
template <class Block>
void add_codes(Block& b, int k, uint64_t word) {
  add_simple_nibbles(b, k, word);
  if constexpr (kHasHighBytes<Block>) b.high[k / 8] = gather_bits(word >> 4);
}

uint64_t codes(const BlockQ8_0& b, int k) {
  return load8(reinterpret_cast<const uint8_t*>(b.q) + k);
}
void add_codes(BlockQ8_0& b, int k, uint64_t word) {
  store8(reinterpret_cast<uint8_t*>(b.q) + k, word);
}

template <class Block>
uint64_t k45_nibbles(const Block& b, int k) {
  return load8(b.q + k / 64 * 32 + k % 32) >> (k % 64 < 32 ? 0 : 4) & kLowHalves;
}
template <class Block>
void add_k45_nibbles(Block& b, int k, uint64_t word) {
  or8(b.q + k / 64 * 32 + k % 32, (word & kLowHalves) << (k % 64 < 32 ? 0 : 4));
}
uint64_t codes(const BlockQ4_K& b, int k) { return k45_nibbles(b, k); }
void add_codes(BlockQ4_K& b, int k, uint64_t word) { add_k45_nibbles(b, k, word); }
uint64_t codes(const BlockQ5_K& b, int k) {
  return k45_nibbles(b, k) | (load8(b.high + k % 32) >> (k / 32) & every_byte(1)) << 4;
}
void add_codes(BlockQ5_K& b, int k, uint64_t word) {
  add_k45_nibbles(b, k, word);
  or8(b.high + k % 32, (word >> 4 & every_byte(1)) << (k / 32));
}

uint64_t codes(const BlockQ2_K& b, int k) {
  return load8(b.q + k / 128 * 32 + k % 32) >> (k % 128 / 32 * 2) & every_byte(3);
}
void add_codes(BlockQ2_K& b, int k, uint64_t word) {
  or8(b.q + k / 128 * 32 + k % 32, (word & every_byte(3)) << (k % 128 / 32 * 2));
}

uint64_t codes(const BlockQ3_K& b, int k) {
  return (load8(b.q + k / 128 * 32 + k % 32) >> (k % 128 / 32 * 2) & every_byte(3)) |
         (load8(b.high + k % 32) >> (k / 32) & every_byte(1)) << 2;
}
void add_codes(BlockQ3_K& b, int k, uint64_t word) {
  or8(b.q + k / 128 * 32 + k % 32, (word & every_byte(3)) << (k % 128 / 32 * 2));
  or8(b.high + k % 32, (word >> 2 & every_byte(1)) << (k / 32));
}

uint64_t codes(const BlockQ6_K& b, int k) {
  const int half = k / 128, j = k % 128;
  return (load8(b.low + half * 64 + j % 64) >> (j < 64 ? 0 : 4) & kLowHalves) |
         (load8(b.high + half * 32 + j % 32) >> (j / 32 * 2) & every_byte(3)) << 4;
}
void add_codes(BlockQ6_K& b, int k, uint64_t word) {
  const int half = k / 128, j = k % 128;
  or8(b.low + half * 64 + j % 64, (word & kLowHalves) << (j < 64 ? 0 : 4));
  or8(b.high + half * 32 + j % 32, (word >> 4 & every_byte(3)) << (j / 32 * 2));
}

uint64_t codes(const BlockG4& b, int k) {
  return load8(b.nibbles + k / 32 * 16 + k % 16) >> (k % 32 < 16 ? 0 : 4) & kLowHalves;
}
void add_codes(BlockG4& b, int k, uint64_t word) {
  or8(b.nibbles + k / 32 * 16 + k % 16, (word & kLowHalves) << (k % 32 < 16 ? 0 : 4));
}

// The bits per element, and the bits to flip so that q becomes two's complement (0: q is stored).
template <class Block>
constexpr int kBits = 4;
template <>
constexpr int kBits<BlockQ2_K> = 2;
template <>
constexpr int kBits<BlockQ3_K> = 3;
template <>
constexpr int kBits<BlockQ5_0> = 5;
template <>
constexpr int kBits<BlockQ5_1> = 5;
template <>
constexpr int kBits<BlockQ5_K> = 5;
template <>
constexpr int kBits<BlockQ6_K> = 6;
template <>
constexpr int kBits<BlockQ8_0> = 8;
template <class Block>
constexpr uint64_t kFlip = 0;
template <>
constexpr uint64_t kFlip<BlockQ3_K> = every_byte(4);
template <>
constexpr uint64_t kFlip<BlockQ5_0> = every_byte(16);
template <>
constexpr uint64_t kFlip<BlockQ6_K> = every_byte(32);

template <class Block>
constexpr int kSubBytes = 64 * kBits<Block>;
template <class Block>
constexpr int kHeaderBytes = 16 * static_cast<int>(sizeof(Block)) - Block::kElements /
                                                                        32 * kSubBytes<Block>;

// These put and get `high1` and `high2` of the layout: one or two bits of each of a row's columns.
void put_one_bit(uint8_t* high1, int row, int h, uint64_t first, uint64_t second) {
  const int p = row / 2, at = p % 2 * 4 + h * 2;
  or8(high1 + p / 2 * 16 + row % 2 * 8, (first & every_byte(1)) << at | (second & every_byte(1))
                                                                            << (at + 1));
}
void put_two_bits(uint8_t* high2, int row, int h, uint64_t first, uint64_t second) {
  or8(high2 + row / 2 * 16 + row % 2 * 8,
      (first & every_byte(3)) << (h * 4) | (second & every_byte(3)) << (h * 4 + 2));
}
void get_one_bit(const uint8_t* high1, int row, int h, uint64_t& first, uint64_t& second) {
  const int p = row / 2;
  const uint64_t high = load8(high1 + p / 2 * 16 + row % 2 * 8) >> (p % 2 * 4 + h * 2);
  first = high & every_byte(1);
  second = high >> 1 & every_byte(1);
}
void get_two_bits(const uint8_t* high2, int row, int h, uint64_t& first, uint64_t& second) {
  const uint64_t high = load8(high2 + row / 2 * 16 + row % 2 * 8) >> (h * 4);
  first = high & every_byte(3);
  second = high >> 2 & every_byte(3);
}

// These move elements [k, k + 8) and [k + 16, k + 24) of a row to and from its pieces of a
// sub-block.
template <class Block>
void put_codes(uint8_t* sub, int row, int h, uint64_t first, uint64_t second) {
  const int p = row / 2, lane = row % 2 * 8;
  if constexpr (kBits<Block> == 8) {
    store8(sub + (p * 4 + h) * 16 + lane, first);
    store8(sub + (p * 4 + 2 + h) * 16 + lane, second);
  } else if constexpr (kBits<Block> == 2) {
    put_two_bits(sub, row, h, first, second);
  } else if constexpr (kBits<Block> == 3) {
    first ^= kFlip<Block>;
    second ^= kFlip<Block>;
    put_two_bits(sub, row, h, first, second);
    put_one_bit(sub + 128, row, h, first >> 2, second >> 2);
  } else {
    first ^= kFlip<Block>;
    second ^= kFlip<Block>;
    store8(sub + (p * 2 + h) * 16 + lane, (first & kLowHalves) | (second & kLowHalves) << 4);
    if constexpr (kBits<Block> == 5) {
      put_one_bit(sub + 256, row, h, first >> 4, second >> 4);
    } else if constexpr (kBits<Block> == 6) {
      put_two_bits(sub + 256, row, h, first >> 4, second >> 4);
    }
  }
}

template <class Block>
void get_codes(const uint8_t* sub, int row, int h, uint64_t& first, uint64_t& second) {
  const int p = row / 2, lane = row % 2 * 8;
  if constexpr (kBits<Block> == 8) {
    first = load8(sub + (p * 4 + h) * 16 + lane);
    second = load8(sub + (p * 4 + 2 + h) * 16 + lane);
  } else if constexpr (kBits<Block> == 2) {
    get_two_bits(sub, row, h, first, second);
  } else if constexpr (kBits<Block> == 3) {
    uint64_t first_top, second_top;
    get_two_bits(sub, row, h, first, second);
    get_one_bit(sub + 128, row, h, first_top, second_top);
    first = (first | first_top << 2) ^ kFlip<Block>;
    second = (second | second_top << 2) ^ kFlip<Block>;
  } else {
    const uint64_t both = load8(sub + (p * 2 + h) * 16 + lane);
    first = both & kLowHalves;
    second = both >> 4 & kLowHalves;
    uint64_t first_top = 0, second_top = 0;
    if constexpr (kBits<Block> == 5) get_one_bit(sub + 256, row, h, first_top, second_top);
    if constexpr (kBits<Block> == 6) get_two_bits(sub + 256, row, h, first_top, second_top);
    first |= first_top << 4;
    second |= second_top << 4;
    first ^= kFlip<Block>;
    second ^= kFlip<Block>;
  }
}

void put_half(uint8_t* halves, int row, Half value) { std::memcpy(halves + 2 * row, &value, 2); }
Half get_half(const uint8_t* halves, int row) {
  Half value;
  std::memcpy(&value, halves + 2 * row, 2);
  return value;
}

// Byte s of `values` belongs to sub-block s.
void put_six(uint8_t* six, int row, uint64_t values) {
  const uint64_t low = (values & kLowHalves) | (values >> 32 & kLowHalves) << 4;
  for (int s = 0; s < 4; ++s) six[s * 16 + row] = static_cast<uint8_t>(low >> (8 * s));
  const uint64_t top = values >> 4 & every_byte(3), pairs = top | top >> 6,
                 fours = pairs | pairs >> 12;
  six[64 + row] = static_cast<uint8_t>(fours);
  six[80 + row] = static_cast<uint8_t>(fours >> 32);
}
void get_six(const uint8_t* six, int row, uint8_t values[8]) {
  for (int s = 0; s < 8; ++s) {
    const int low = six[s % 4 * 16 + row] >> (s / 4 * 4) & 15;
    values[s] = static_cast<uint8_t>(low | (six[64 + s / 4 * 16 + row] >> (s % 4 * 2) & 3) << 4);
  }
}
// The inverse of unpack_k_scales.
void pack_k_scales(const uint8_t scales[8], const uint8_t minima[8], uint8_t packed[12]) {
  for (int i = 0; i < 4; ++i) {
    packed[i] = static_cast<uint8_t>(scales[i] | (scales[i + 4] >> 4) << 6);
    packed[i + 4] = static_cast<uint8_t>(minima[i] | (minima[i + 4] >> 4) << 6);
    packed[i + 8] = static_cast<uint8_t>((scales[i + 4] & 15) | (minima[i + 4] & 15) << 4);
  }
}

// Does what unpack_k_scales() does in whole words, because loads after single-byte stores stall.
void load_k_scales(const uint8_t packed[12], uint64_t& scales, uint64_t& minima) {
  const uint64_t first = load8(packed), last = load8(packed + 4) >> 32;
  const uint64_t low = first & every_byte(63), top = (first >> 6 & every_byte(3)) << 4;
  constexpr uint64_t kHalf = 0xffffffff;
  scales = (low & kHalf) | ((last & kLowHalves) | (top & kHalf)) << 32;
  minima = low >> 32 | ((last >> 4 & kLowHalves) | top >> 32) << 32;
}

// Convert the 16 six-bit scales of Q3_K (see BlockQ3_K) to the bytes of two words, and back.
void load_q3_scales(const uint8_t packed[12], uint64_t scales[2]) {
  const uint64_t low = load8(packed), top = load8(packed + 4) >> 32;
  for (int i = 0; i < 2; ++i) {
    const uint64_t first = top >> (4 * i) & 0x03030303, second = top >> (4 * i + 2) & 0x03030303;
    scales[i] = (low >> (4 * i) & kLowHalves) | (first | second << 32) << 4;
  }
}
void pack_q3_scales(const uint8_t scales[16], uint8_t packed[12]) {
  for (int i = 0; i < 8; ++i) {
    packed[i] = static_cast<uint8_t>((scales[i] & 15) | (scales[i + 8] & 15) << 4);
  }
  for (int i = 0; i < 4; ++i) {
    packed[8 + i] = static_cast<uint8_t>(scales[i] >> 4 | (scales[i + 4] >> 4) << 2 |
                                         (scales[i + 8] >> 4) << 4 | (scales[i + 12] >> 4) << 6);
  }
}

template <class Block>
constexpr bool kHasSixBitMinima =
    std::is_same_v<Block, BlockQ4_K> || std::is_same_v<Block, BlockQ5_K>;

template <class Block>
void put_header(uint8_t* group, int row, const Block& b) {
  put_half(group, row, b.d);
  if constexpr (requires { b.m; }) put_half(group + 32, row, b.m);
  if constexpr (requires { b.dmin; }) put_half(group + 32, row, b.dmin);
  if constexpr (kHasSixBitMinima<Block>) {
    uint64_t scales, minima;
    load_k_scales(b.scales, scales, minima);
    put_six(group + 64, row, scales);
    put_six(group + 160, row, minima);
  }
  if constexpr (std::is_same_v<Block, BlockQ2_K>) {
    for (int s = 0; s < 16; ++s) group[64 + s * 16 + row] = b.scales[s];
  }
  if constexpr (std::is_same_v<Block, BlockQ6_K>) {
    for (int s = 0; s < 16; ++s) group[32 + s * 16 + row] = static_cast<uint8_t>(b.scales[s]);
  }
  if constexpr (std::is_same_v<Block, BlockQ3_K>) {
    uint64_t scales[2];
    load_q3_scales(b.scales, scales);
    put_six(group + 32, row, scales[0]);
    put_six(group + 32 + 96, row, scales[1]);
  }
}
template <class Block>
void get_header(const uint8_t* group, int row, Block& b) {
  b.d = get_half(group, row);
  if constexpr (requires { b.m; }) b.m = get_half(group + 32, row);
  if constexpr (requires { b.dmin; }) b.dmin = get_half(group + 32, row);
  if constexpr (kHasSixBitMinima<Block>) {
    uint8_t scales[8], minima[8];
    get_six(group + 64, row, scales);
    get_six(group + 160, row, minima);
    pack_k_scales(scales, minima, b.scales);
  }
  if constexpr (std::is_same_v<Block, BlockQ2_K>) {
    for (int s = 0; s < 16; ++s) b.scales[s] = group[64 + s * 16 + row];
  }
  if constexpr (std::is_same_v<Block, BlockQ6_K>) {
    for (int s = 0; s < 16; ++s) b.scales[s] = static_cast<int8_t>(group[32 + s * 16 + row]);
  }
  if constexpr (std::is_same_v<Block, BlockQ3_K>) {
    uint8_t scales[16];
    get_six(group + 32, row, scales);
    get_six(group + 32 + 96, row, scales + 8);
    pack_q3_scales(scales, b.scales);
  }
}

template <class Block>
void pack_group(const std::byte* stored, std::byte* packed, int64_t cols) {
  const int64_t blocks = cols / Block::kElements;
  std::vector<std::byte> rows;
  if (stored == packed || reinterpret_cast<uintptr_t>(stored) % alignof(Block) != 0) {
    rows.assign(stored, stored + 16 * blocks * static_cast<int64_t>(sizeof(Block)));
    stored = rows.data();
  }
  const auto* from = reinterpret_cast<const Block*>(stored);
  auto* group = reinterpret_cast<uint8_t*>(packed);
  for (int64_t i = 0; i < blocks; ++i, group += 16 * sizeof(Block)) {
    if constexpr (kBits<Block> != 4 && kBits<Block> != 8) std::memset(group, 0, 16 * sizeof(Block));
    for (int row = 0; row < 16; ++row) {
      const Block& b = from[row * blocks + i];
      put_header(group, row, b);
#pragma GCC unroll 8  // makes the shifts constant
      for (int k = 0; k < Block::kElements; k += 32) {
        uint8_t* sub = group + kHeaderBytes<Block> + k / 32 * kSubBytes<Block>;
        put_codes<Block>(sub, row, 0, codes(b, k), codes(b, k + 16));
        put_codes<Block>(sub, row, 1, codes(b, k + 8), codes(b, k + 24));
      }
    }
  }
}

template <class Block>
void unpack(const std::byte* packed, int row, std::byte* stored, int64_t cols) {
  for (int64_t i = 0; i < cols / Block::kElements; ++i) {
    const auto* group =
        reinterpret_cast<const uint8_t*>(packed) + i * 16 * static_cast<int64_t>(sizeof(Block));
    Block b{};
    get_header(group, row, b);
    for (int k = 0; k < Block::kElements; k += 32) {
      const uint8_t* sub = group + kHeaderBytes<Block> + k / 32 * kSubBytes<Block>;
      for (int h = 0; h < 2; ++h) {
        uint64_t first, second;
        get_codes<Block>(sub, row, h, first, second);
        add_codes(b, k + 8 * h, first);
        add_codes(b, k + 16 + 8 * h, second);
      }
    }
    std::memcpy(stored + i * static_cast<int64_t>(sizeof(Block)), &b, sizeof(Block));
  }
}

// Calls fn(Block{}) with the block of `type`; false for types without a packed layout.
template <class Fn>
bool with_block(DType type, Fn&& fn) {
  switch (type) {
    case DType::kQ4_0:
      return fn(BlockQ4_0{}), true;
    case DType::kQ4_1:
      return fn(BlockQ4_1{}), true;
    case DType::kQ5_0:
      return fn(BlockQ5_0{}), true;
    case DType::kQ5_1:
      return fn(BlockQ5_1{}), true;
    case DType::kQ8_0:
      return fn(BlockQ8_0{}), true;
    case DType::kQ2_K:
      return fn(BlockQ2_K{}), true;
    case DType::kQ3_K:
      return fn(BlockQ3_K{}), true;
    case DType::kQ4_K:
      return fn(BlockQ4_K{}), true;
    case DType::kQ5_K:
      return fn(BlockQ5_K{}), true;
    case DType::kQ6_K:
      return fn(BlockQ6_K{}), true;
    case DType::kG4:
      return fn(BlockG4{}), true;
    default:
      return false;
  }
}

}  // namespace

bool can_pack(DType type) {
  return with_block(type, [](auto) {});
}

void pack_groups(DType type, const std::byte* stored, std::byte* packed, int64_t groups,
                 int64_t cols) {
  const int64_t group_bytes = kGroupRows * row_bytes(type, cols);
  const bool known = with_block(type, [&]<class Block>(Block) {
    for (int64_t g = 0; g < groups; ++g) {
      pack_group<Block>(stored + g * group_bytes, packed + g * group_bytes, cols);
    }
  });
  SPW_ASSERT(known);
}

void unpack_row(DType type, const std::byte* packed, int64_t row, std::byte* stored, int64_t cols) {
  SPW_ASSERT(row >= 0 && row < kGroupRows);
  const bool known = with_block(type, [&]<class Block>(Block) {
    unpack<Block>(packed, static_cast<int>(row), stored, cols);
  });
  SPW_ASSERT(known);
}

}  // namespace spillway
