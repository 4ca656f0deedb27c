// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic on sizes that come from files; overflow gives nullopt instead of a silent
// wrap.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>

namespace spillway {

template <std::integral T>
[[nodiscard]] constexpr std::optional<T> try_add(T a, T b) {
  T r{};
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

template <std::integral T>
[[nodiscard]] constexpr std::optional<T> try_mul(T a, T b) {
  T r{};
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

// Returns the next multiple of `alignment` (a power of two) at or after `value`.
[[nodiscard]] constexpr std::optional<uint64_t> try_align_up(uint64_t value, uint64_t alignment) {
  const auto sum = try_add(value, alignment - 1);
  if (!sum) return std::nullopt;
  return *sum & ~(alignment - 1);
}

template <std::integral T>
constexpr T ceil_div(T a, T b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace spillway
