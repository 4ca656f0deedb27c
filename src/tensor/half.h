// SPDX-License-Identifier: Apache-2.0
// 16-bit floats as storage types. Conversions round to nearest even and keep NaN and infinity.
#pragma once

#include <bit>
#include <cstdint>

namespace spillway {

// IEEE binary16, storage only.
struct Half {
  uint16_t bits = 0;
};
// The upper half of an IEEE binary32, storage only.
struct BFloat16 {
  uint16_t bits = 0;
};

inline float to_float(BFloat16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

inline BFloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

#if defined(__aarch64__)
inline float to_float(Half value) { return static_cast<float>(std::bit_cast<__fp16>(value.bits)); }
inline Half to_half(float value) { return {std::bit_cast<uint16_t>(static_cast<__fp16>(value))}; }
#else
inline float to_float(Half value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000U} << 16;
  const uint32_t magnitude = value.bits & 0x7fffU;
  if (magnitude >= 0x7c00U)
    return std::bit_cast<float>(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13));
  if (magnitude >= 0x0400U) return std::bit_cast<float>(sign | ((magnitude + 0x1c000U) << 13));
  // Zero and subnormals: magnitude * 2^-24 is exact in binary32.
  return std::bit_cast<float>(sign |
                              std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24F));
}

inline Half to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U)
    return {static_cast<uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU))};
  if (magnitude >= 0x477ff000U)
    return {static_cast<uint16_t>(sign | 0x7c00U)};  // rounds to infinity
  if (magnitude >= 0x38800000U) {
    const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
    return {static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13))};
  }
  // Subnormal result: adding 0.5 lets the FPU round at bit 2^-24.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U))};
}
#endif

}  // namespace spillway
