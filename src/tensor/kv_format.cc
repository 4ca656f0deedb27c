// SPDX-License-Identifier: Apache-2.0
#include "tensor/kv_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "tensor/half.h"

namespace spillway {
namespace {

constexpr std::string_view kNames[] = {"f32", "f16", "bf16", "int8", "int4"};

void put_half(std::byte* at, Half value) { std::memcpy(at, &value, sizeof(value)); }
float get_half(const std::byte* at) {
  Half value;
  std::memcpy(&value, at, sizeof(value));
  return to_float(value);
}
bool fits_half(float value) { return std::fabs(value) < kKvHalfEnd; }  // false for NaN
bool fits_bf16(float value) { return std::fabs(value) < kKvBf16End; }

// Rounds to the nearest code, ties to even.
int code_of(float value, float lowest, float highest) {
  return static_cast<int>(std::nearbyint(std::clamp(value, lowest, highest)));
}

// Returns the result for numbers that the type can hold or not (`held`).
KvStored stored(const float* x, int64_t n, bool held) {
  if (!std::all_of(x, x + n, [](float value) { return std::isfinite(value); }))
    return KvStored::kNotFinite;
  return held ? KvStored::kWell : KvStored::kBeyondRange;
}

KvStored store_plain(KvType type, const float* x, int64_t n, std::byte* row) {
  bool held = true;
  for (int64_t i = 0; i < n; ++i) {
    if (type == KvType::kF32) {
      const uint32_t bits =
          std::isfinite(x[i]) ? std::bit_cast<uint32_t>(x[i]) : uint32_t{kKvNanFloat};
      std::memcpy(row + 4 * i, &bits, sizeof(bits));
    } else if (type == KvType::kBf16) {
      held = held && fits_bf16(x[i]);
      const BFloat16 value = fits_bf16(x[i]) ? to_bfloat16(x[i]) : BFloat16{kKvNanBf16};
      std::memcpy(row + 2 * i, &value, sizeof(value));
    } else {
      held = held && fits_half(x[i]);
      put_half(row + 2 * i, fits_half(x[i]) ? to_half(x[i]) : Half{kKvNanHalf});
    }
  }
  return stored(x, n, held);
}

KvStored store_int8(const KvPageLayout& layout, KvPart part, const float* x, std::byte* page,
                    int token) {
  KvStored worst = KvStored::kWell;
  for (int64_t g = 0; g < layout.groups; ++g) {
    const float* group = x + g * kKvGroup;
    const int64_t n = layout.group_size(g);
    float largest = 0;
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(group[i]));
    const KvStored now = stored(group, n, fits_half(largest / 127));
    worst = std::max(worst, now);
    if (now != KvStored::kWell) {
      put_half(page + 2 * (g * kKvBlockTokens + token), Half{kKvNanHalf});
      for (int64_t i = 0; i < n; ++i)
        page[layout.code_at(part, token, g * kKvGroup + i)] = std::byte{0};
      continue;
    }
    const Half scale = to_half(largest / 127);
    const float inverse = scale.bits == 0 ? 0 : 1 / to_float(scale);
    put_half(page + 2 * (g * kKvBlockTokens + token), scale);
    for (int64_t i = 0; i < n; ++i) {
      page[layout.code_at(part, token, g * kKvGroup + i)] =
          static_cast<std::byte>(code_of(group[i] * inverse, -127, 127));
    }
  }
  return worst;
}

KvStored store_int4(const KvPageLayout& layout, KvPart part, const float* x, std::byte* page,
                    int token) {
  KvStored worst = KvStored::kWell;
  for (int64_t g = 0; g < layout.groups; ++g) {
    const float* group = x + g * kKvGroup;
    const int64_t n = layout.group_size(g);
    float smallest = group[0], largest = group[0];
    for (int64_t i = 1; i < n; ++i) {
      smallest = std::min(smallest, group[i]);
      largest = std::max(largest, group[i]);
    }
    const Half min = to_half(smallest);
    const float base = to_float(min);
    const KvStored now = stored(group, n, fits_half(smallest) && fits_half((largest - base) / 15));
    worst = std::max(worst, now);
    if (now != KvStored::kWell) {
      put_half(page + 2 * (g * kKvBlockTokens + token), Half{kKvNanHalf});
      put_half(page + layout.mins_at + 2 * (g * kKvBlockTokens + token), Half{kKvNanHalf});
      for (int64_t i = 0; i < n / 2; ++i)
        page[layout.code_at(part, token, g * (kKvGroup / 2) + i)] = std::byte{0};
      continue;
    }
    const Half scale = to_half((largest - base) / 15);
    // The minimum may be rounded up past all values; the difference is then negative or zero.
    const bool flat = scale.bits == 0 || (scale.bits & 0x8000U) != 0;
    const float inverse = flat ? 0 : 1 / to_float(scale);
    put_half(page + 2 * (g * kKvBlockTokens + token), flat ? Half{} : scale);
    put_half(page + layout.mins_at + 2 * (g * kKvBlockTokens + token), min);
    const auto code = [&](float value) { return code_of((value - base) * inverse, 0, 15); };
    for (int64_t i = 0; i < n / 2; ++i) {
      page[layout.code_at(part, token, g * (kKvGroup / 2) + i)] =
          static_cast<std::byte>(code(group[i]) | code(group[n / 2 + i]) << 4);
    }
  }
  return worst;
}

}  // namespace

std::string_view kv_type_name(KvType type) { return kNames[static_cast<size_t>(type)]; }

std::optional<KvType> try_kv_type_from_name(std::string_view name) {
  for (const KvType type : kAllKvTypes) {
    if (name == kv_type_name(type)) return type;
  }
  return std::nullopt;
}

namespace {

// Replaces elements `half` apart by their sum and difference, in runs of 2 * half.
void rotate_step(float* x, int64_t size, int64_t half) {
  for (int64_t i = 0; i < size; i += 2 * half) {
    float* __restrict first = x + i;
    float* __restrict second = x + i + half;
    for (int64_t j = 0; j < half; ++j) {
      const float a = first[j], b = second[j];
      first[j] = a + b;
      second[j] = a - b;
    }
  }
}
// Does the steps of 1 and 2 together, because the loops above would run only once or twice.
void rotate_fours(float* x, int64_t size) {
  for (int64_t i = 0; i < size; i += 4) {
    const float a = x[i] + x[i + 1], b = x[i] - x[i + 1];
    const float c = x[i + 2] + x[i + 3], d = x[i + 2] - x[i + 3];
    x[i] = a + c;
    x[i + 1] = b + d;
    x[i + 2] = a - c;
    x[i + 3] = b - d;
  }
}

}  // namespace

void rotate_kv(float* x, int64_t head_dim) {
  for (int64_t first = 0; first < head_dim; first += kKvGroup) {
    const int64_t size = std::min(kKvGroup, head_dim - first);
    const int64_t run = size & -size;
    const float factor = 1 / std::sqrt(static_cast<float>(run));
    float* part = x + first;
    if (run >= 4) rotate_fours(part, size);
    for (int64_t half = run >= 4 ? 4 : 1; half < run; half *= 2) rotate_step(part, size, half);
    for (int64_t i = 0; i < size; ++i) part[i] *= factor;
  }
}

KvStored store_kv_reference(const KvPageLayout& layout, KvPart part, const float* x,
                            std::byte* page, int token) {
  std::byte* row = page + layout.codes_at + token * layout.row_bytes;
  if (!is_quantized(layout.type)) return store_plain(layout.type, x, layout.head_dim, row);
  if (layout.type == KvType::kInt8) return store_int8(layout, part, x, page, token);
  std::vector<float> rotated(x, x + layout.head_dim);
  rotate_kv(rotated.data(), layout.head_dim);
  return store_int4(layout, part, rotated.data(), page, token);
}

void load_kv_reference(const KvPageLayout& layout, KvPart part, const std::byte* page, int token,
                       float* x) {
  const std::byte* row = page + layout.codes_at + token * layout.row_bytes;
  if (layout.type == KvType::kF32) {
    std::memcpy(x, row, static_cast<size_t>(layout.row_bytes));
    return;
  }
  if (layout.type == KvType::kF16) {
    for (int64_t i = 0; i < layout.head_dim; ++i) x[i] = get_half(row + 2 * i);
    return;
  }
  if (layout.type == KvType::kBf16) {
    for (int64_t i = 0; i < layout.head_dim; ++i) {
      BFloat16 value;
      std::memcpy(&value, row + 2 * i, sizeof(value));
      x[i] = to_float(value);
    }
    return;
  }
  for (int64_t g = 0; g < layout.groups; ++g) {
    float* group = x + g * kKvGroup;
    const int64_t n = layout.group_size(g);
    const float scale = get_half(page + 2 * (g * kKvBlockTokens + token));
    const auto byte = [&](int64_t i) {
      return static_cast<uint8_t>(page[layout.code_at(part, token, i)]);
    };
    if (layout.type == KvType::kInt8) {
      for (int64_t i = 0; i < n; ++i) {
        group[i] = scale * static_cast<float>(static_cast<int8_t>(byte(g * kKvGroup + i)));
      }
    } else {
      const float min = get_half(page + layout.mins_at + 2 * (g * kKvBlockTokens + token));
      for (int64_t i = 0; i < n / 2; ++i) {
        const uint8_t pair = byte(g * (kKvGroup / 2) + i);
        group[i] = min + scale * static_cast<float>(pair & 15);
        group[n / 2 + i] = min + scale * static_cast<float>(pair >> 4);
      }
    }
  }
  if (is_rotated(layout.type)) rotate_kv(x, layout.head_dim);
}

}  // namespace spillway
