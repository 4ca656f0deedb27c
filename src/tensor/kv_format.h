// SPDX-License-Identifier: Apache-2.0
// Defines how keys and values are stored in the pages of the KV cache.
//
// A page holds 16 tokens of one kv head contiguously, so that it can be moved and attended to by
// itself. A token is written without touching the others.
//
//   F32, F16, BF16   [16][head_dim]
//   int8       scale [groups][16] F16, then codes of head_dim bytes per token:
//              x = scale * code, -127 to 127
//   int4       scale [groups][16] F16, min [groups][16] F16, then codes of head_dim / 2 bytes per
//              token: x = min + scale * code, 0 to 15 (FlexGen, section 4: asymmetric, groups of
//              64)
//
// int4 stores keys and values rotated by rotate_kv(), row by row (after QuaRot, section 4). The
// rotation spreads the few large elements of a row over the group, which halves the error of keys
// and reduces that of values by a quarter. Scores do not change if queries are rotated as well; a
// weighted sum of rotated values is the rotated sum, so attention must rotate it back.
//
// Codes of keys are [16 tokens][bytes]. Codes of values are [bytes / 2][2][2 bytes][8 tokens]: the
// elements of a sum over tokens are adjacent, and 16 bytes are two rows of 8, as matrix
// instructions need them.
//
// A group is 64 elements of a head; the last one of a row may be shorter. The scales of 16 tokens
// are adjacent: a vector of them multiplies a vector of scores, and they fill whole 32-byte
// sectors, so rows of codes start at 16-byte boundaries wherever their own size allows it. In a
// group of n elements, byte i of int4 codes has element i in its low half and element n / 2 + i in
// its high half, so 32 bytes unpack to two runs of 32 without a shuffle.
//
// int8 has a scale per 64 elements, too: one F16 per 64 codes adds 3% of bytes, and if a row of 128
// has one outlier, its other half stays precise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/checked_math.h"

namespace spillway {

inline constexpr int kKvBlockTokens = 16;
inline constexpr int64_t kKvGroup = 64;  // elements that share a scale

enum class KvType : uint8_t { kF32, kF16, kBf16, kInt8, kInt4 };
inline constexpr KvType kAllKvTypes[] = {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8,
                                         KvType::kInt4};

enum class KvPart : uint8_t { kKeys, kValues };

std::string_view kv_type_name(KvType type);
[[nodiscard]] std::optional<KvType> try_kv_type_from_name(std::string_view name);

constexpr bool is_quantized(KvType type) { return type >= KvType::kInt8; }
// Whether elements are stored unquantized in two bytes.
constexpr bool is_half(KvType type) { return type == KvType::kF16 || type == KvType::kBf16; }
// Quantized types support multiples of 8 up to 256, the others any size.
constexpr bool kv_type_supports(KvType type, int64_t head_dim) {
  return head_dim > 0 && (!is_quantized(type) || (head_dim % 8 == 0 && head_dim <= 256));
}

// The offsets of the parts of a page.
struct KvPageLayout {
  constexpr KvPageLayout(KvType kv_type, int64_t dim)
      : type(kv_type),
        head_dim(dim),
        groups(is_quantized(kv_type) ? (dim + kKvGroup - 1) / kKvGroup : 0),
        mins_at(2 * groups * kKvBlockTokens),
        codes_at(kv_type == KvType::kInt4 ? 2 * mins_at : mins_at),
        row_bytes(kv_type == KvType::kF32    ? 4 * dim
                  : is_half(kv_type)         ? 2 * dim
                  : kv_type == KvType::kInt8 ? dim
                                             : dim / 2),
        bytes(codes_at + kKvBlockTokens * row_bytes) {}

  constexpr int64_t group_size(int64_t group) const {
    const int64_t left = head_dim - group * kKvGroup;
    return left < kKvGroup ? left : kKvGroup;
  }

  // Returns the offset of byte `byte` of the codes of token `token`.
  constexpr int64_t code_at(KvPart part, int64_t token, int64_t byte) const {
    if (part == KvPart::kKeys || !is_quantized(type)) return codes_at + token * row_bytes + byte;
    return codes_at + byte / 2 * 32 + token / 8 * 16 + byte % 2 * 8 + token % 8;
  }

  KvType type;
  int64_t head_dim;
  int64_t groups;
  int64_t mins_at;   // in bytes from the page's start; the scales are at 0
  int64_t codes_at;  // offset of the codes of token 0
  int64_t row_bytes;
  int64_t bytes;
};

constexpr bool is_rotated(KvType type) { return type == KvType::kInt4; }
// Transforms x [head_dim] in place by the orthonormal Walsh-Hadamard transform, in runs of the
// largest power of two that divides the group's size. It is its own inverse, up to rounding.
void rotate_kv(float* x, int64_t head_dim);

// Bytes of one page: 16 tokens of one kv head.
constexpr int64_t kv_page_bytes(KvType type, int64_t head_dim) {
  return KvPageLayout(type, head_dim).bytes;
}

// The shape of a KV cache in which all layers are alike.
struct KvShape {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  KvType type = KvType::kF16;

  // The bytes of K and V of a block (16 tokens) over all layers, and of K or V of a block in one
  // layer.
  constexpr int64_t block_bytes() const { return 2 * layers * plane_block_bytes(); }
  constexpr int64_t plane_block_bytes() const { return kv_heads * kv_page_bytes(type, head_dim); }
  bool operator==(const KvShape&) const = default;
};
// Returns the number of blocks that `tokens` tokens take.
constexpr int64_t blocks_for_tokens(int64_t tokens) {
  return ceil_div<int64_t>(tokens, kKvBlockTokens);
}

// The result of storing a row. Values that a page cannot hold are stored as NaN, so that attention
// to them never gives a number: in F32, F16 or BF16 the element is NaN, in int8 or int4 the group's
// scale (and minimum) is NaN and its codes are 0. This happens for values that are not finite, for
// elements that would round to infinity in F16 or BF16, and for groups whose scale or minimum would
// in F16.
enum class KvStored : uint8_t { kWell, kBeyondRange, kNotFinite };
inline constexpr uint16_t kKvNanHalf = 0x7e00;
inline constexpr uint32_t kKvNanFloat = 0x7fc00000;
inline constexpr float kKvHalfEnd = 65520;  // smaller numbers round to finite halves
inline constexpr uint16_t kKvNanBf16 = 0x7fc0;
inline constexpr float kKvBf16End = 0x1.ffp127F;  // the same for BF16

// The reference for all devices: stores x [head_dim] as token `token` of a page, and reads it back,
// as every device must, bit for bit. Scales are rounded to F16 before codes are chosen. Returns the
// worst result among the elements.
KvStored store_kv_reference(const KvPageLayout& layout, KvPart part, const float* x,
                            std::byte* page, int token);
void load_kv_reference(const KvPageLayout& layout, KvPart part, const std::byte* page, int token,
                       float* x);

}  // namespace spillway
